from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.core.request import Request
from testbed.metrics.miss_ratio import lru_curve
from testbed.metrics.prompt_paths import block_paths, prompt_paths
from testbed.workloads import find_data_file
from testbed.workloads.traces import MooncakeTrace
from tests.cases.serial import build_scheduler, serve_in_order

TRACES = json.loads((Path(__file__).parents[1] / "cases" / "traces.json").read_text())["instances"]
prompts_st = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=9), min_size=1, max_size=14)


def requests_of(prompts: Sequence[Sequence[int]], num_output: int = 1) -> list[Request]:
    return [
        Request(
            id=i,
            prompt=np.array(prompt, dtype=np.int32),
            output=np.array([7 + i] * num_output, dtype=np.int32),
        )
        for i, prompt in enumerate(prompts)
    ]


def test_distances_worked_out_by_hand() -> None:
    """Prompts 1 2 3, then 1 4, then 1 2 3: the last one's pages lie at 1 (token 1), 3 and 4."""
    curve = lru_curve(
        prompt_paths(requests_of([[1, 2, 3], [1, 4], [1, 2, 3]]), 1, min_computed_tokens=0)
    )
    assert (curve.min_capacity, curve.working_set, curve.total_tokens) == (3, 4, 8)
    assert [curve.hit_tokens(capacity) for capacity in (3, 4, 9)] == [1 + 2, 1 + 3, 1 + 3]
    assert curve.hit_rate(4) == 0.5
    with pytest.raises(ValueError, match="capacity=2: at least 3 pages"):
        curve.hit_tokens(2)


@given(prompts_st, st.integers(1, 2), st.integers(1, 3))
def test_every_size_hits_what_a_serial_lru_cache_of_that_size_hits(
    prompts: list[list[int]], page_size: int, num_output: int
) -> None:
    whole_pages = [[token for token in prompt for _ in range(page_size)] for prompt in prompts]
    requests = requests_of(whole_pages, 1 if page_size > 1 else num_output)
    paths = prompt_paths(requests, page_size, min_computed_tokens=0, cache_outputs=True)
    curve = lru_curve(paths)
    for capacity in range(curve.min_capacity, curve.working_set + 2):
        served = serve_in_order(build_scheduler(capacity, page_size=page_size), requests)
        assert curve.hit_tokens(capacity) == sum(served.hits)


@given(prompts_st)
def test_any_order_can_be_served(prompts: list[list[int]]) -> None:
    requests = requests_of(prompts)
    paths = prompt_paths(requests, 1, min_computed_tokens=0)
    backwards = list(reversed(range(len(prompts))))
    turned = prompt_paths(requests_of(prompts[::-1]), 1, min_computed_tokens=0)
    there, here = lru_curve(paths, backwards), lru_curve(turned)
    for capacity in range(here.min_capacity, here.working_set + 2):
        assert there.hit_tokens(capacity) == here.hit_tokens(capacity)


@pytest.mark.parametrize("mode", ["A", "B", "C"])
def test_a_public_trace_at_every_size_that_somebody_else_counted(mode: str) -> None:
    """The counts of tests/cases/traces.json come from another implementation of LRU."""
    file = "mooncake/conversation_trace.jsonl"
    rows = [
        row
        for row in TRACES
        if row["file"] == file and row["mode"] == mode and "lru" in row and row["capacity"]
    ]
    try:
        path = find_data_file(file)
    except FileNotFoundError:
        pytest.skip("the trace is not in the data folder")
    if not rows:
        pytest.skip("nobody counted this mode")
    size = rows[0]["block_size"]
    blocks, lengths = [], []
    for request in MooncakeTrace(path, block_size=size):
        length = len(request.prompt)
        lengths.append(length)
        listed = (request.prompt[::size] // size).tolist()
        blocks.append(listed if mode == "A" else listed[: length // size])
    paths = block_paths(blocks, lengths, size, min_computed_tokens=1 if mode == "C" else 0)
    curve = lru_curve(paths)
    for row in rows:
        assert curve.hit_tokens(row["capacity"]) == row["lru"][1]
