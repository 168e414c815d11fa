"""What every workload promises, asked of each."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from testbed.core.request import Request
from testbed.workloads import (
    DrawnLengthsWorkload,
    LengthsWorkload,
    LessonWorkload,
    MooncakeTrace,
    MultiClientWorkload,
    PoissonArrivals,
    RagWorkload,
    Retimed,
    Workload,
)


def mooncake(folder: Path, vocab: int | None) -> Workload:
    path = folder / "trace.jsonl"
    rows = [
        {"timestamp": t, "input_length": 700, "output_length": 9, "hash_ids": [0, t + 1]}
        for t in range(20)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return MooncakeTrace(path, vocab=vocab)


WORKLOADS: dict[str, Callable[[Path, int | None], Workload]] = {
    "rag": lambda _, vocab: RagWorkload(num_requests=20, vocab=vocab),
    "lesson": lambda _, vocab: LessonWorkload(scrambled=True, vocab=vocab),
    "lengths": lambda _, vocab: LengthsWorkload([5, 6], [7, 8], vocab=vocab),
    "drawn": lambda _, vocab: DrawnLengthsWorkload(num_requests=20, vocab=vocab),
    "clients": lambda _, vocab: MultiClientWorkload(duration=5.0, vocab=vocab),
    "mooncake": mooncake,
    "retimed": lambda _, vocab: Retimed(
        RagWorkload(num_requests=9, vocab=vocab), PoissonArrivals(1)
    ),
}


def content(request: Request) -> tuple[object, ...]:
    assert request.output is not None
    return (
        request.id,
        request.prompt.tobytes(),
        request.output.tobytes(),
        request.max_new_tokens,
        request.arrival,
        request.client,
        request.weight,
    )


@pytest.mark.parametrize("vocab", [None, 49_152])
@pytest.mark.parametrize("kind", WORKLOADS)
def test_a_workload_keeps_the_contract(kind: str, vocab: int | None, tmp_path: Path) -> None:
    workload = WORKLOADS[kind](tmp_path, vocab)
    requests = list(workload)
    assert len(workload) == len(requests) > 0
    assert [request.id for request in requests] == list(range(len(requests)))
    arrivals = [request.arrival for request in requests]
    assert arrivals == sorted(arrivals)
    assert all(type(arrival) is float for arrival in arrivals)
    for request in requests:
        assert request.output is not None
        for tokens in (request.prompt, request.output):
            assert tokens.dtype == np.int32 and tokens.ndim == 1
            assert tokens.min() >= 0 and (vocab is None or tokens.max() < vocab)
    assert workload.skipped_lines == 0 and workload.name
    assert [content(r) for r in workload] == [content(r) for r in requests]
    again = WORKLOADS[kind](tmp_path, vocab)
    assert [content(r) for r in again] == [content(r) for r in requests]


def test_two_walks_at_once_do_not_disturb_each_other() -> None:
    workload = RagWorkload(num_requests=6, order="scrambled")
    pairs = list(zip(workload, workload, strict=True))
    assert [content(a) for a, _ in pairs] == [content(b) for _, b in pairs]


def test_requests_are_built_as_they_are_asked_for() -> None:
    endless = RagWorkload(num_requests=10**12, questions=1)
    assert next(iter(endless)).id == 0
