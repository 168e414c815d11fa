"""The pairwise gap, by hand and against a step-by-step replay."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from testbed.core.records import RunRecord
from testbed.metrics.service import EXTENDED, TOTAL, ServiceUnit, service_curve
from testbed.metrics.service_gap import max_service_gaps

MakeRecord = Callable[..., RunRecord]


def step(number: int, start_s: float, end_s: float, decode_rows: int = 0) -> dict[str, Any]:
    return {"step": number, "start_s": start_s, "end_s": end_s, "decode_rows": decode_rows}


def replay(record: RunRecord, unit: ServiceUnit) -> tuple[float, dict[float, dict[str, float]]]:
    """Walk every instant of a one-replica record; the gap by definition, and service after each."""
    rows = [
        dict(zip(record.requests, values, strict=True))
        for values in zip(*record.requests.values(), strict=True)
    ]
    steps = [
        dict(zip(record.steps, values, strict=True))
        for values in zip(*record.steps.values(), strict=True)
    ]
    names = sorted({row["client"] for row in rows})
    service = dict.fromkeys(names, 0.0)
    after: dict[float, dict[str, float]] = {}
    history: dict[tuple[str, str], list[float]] = {}
    largest = 0.0

    def observe(backlogged: set[str]) -> None:
        nonlocal largest
        for pair in combinations(names, 2):
            if pair[0] in backlogged and pair[1] in backlogged:
                seen = history.setdefault(pair, [])
                seen.append(service[pair[0]] - service[pair[1]])
                largest = max(largest, max(seen) - min(seen))
            else:
                history.pop(pair, None)

    instants = sorted(
        {s["start_s"] for s in steps} | {s["end_s"] for s in steps} | {r["arrival_s"] for r in rows}
    )
    for now in instants:
        for ended in (s for s in steps if s["end_s"] == now):
            for row in rows:
                for span in row["decode_spans"].split():
                    first, last = map(int, span.split("-"))
                    decoded = first < ended["step"] <= last and ended["decode_rows"] > 0
                    if ended["step"] == first or decoded:
                        service[row["client"]] += unit.output / row["weight"]
        observe({r["client"] for r in rows if r["arrival_s"] < now <= r["admitted_s"]})
        observe({r["client"] for r in rows if r["arrival_s"] <= now <= r["admitted_s"]})
        for row in rows:
            if row["admitted_s"] == now:
                tokens = row["prompt_tokens"] - (not unit.charge_cached) * row["cached_tokens"]
                service[row["client"]] += unit.prompt * tokens / row["weight"]
        observe({r["client"] for r in rows if r["arrival_s"] <= now < r["admitted_s"]})
        after[now] = dict(service)
    return largest, after


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("unit", [TOTAL, EXTENDED, ServiceUnit(prompt=0.5, output=0.25)])
def test_equals_a_replay_of_every_step(
    random_record: MakeRecord, seed: int, unit: ServiceUnit
) -> None:
    record = random_record(np.random.default_rng(seed), num_requests=25, clients=1 + seed % 6)
    gap, after = replay(record, unit)
    assert max_service_gaps(record, [unit]) == pytest.approx([gap])
    times = np.array(list(after))
    expected = [[values[name] for name in sorted(values)] for values in after.values()]
    np.testing.assert_allclose(service_curve(record, unit, times), expected)


def test_by_hand(make_record: MakeRecord) -> None:
    # Both wait from 0. f's first request is admitted at 0 (10 tokens), g's at 3 (4 tokens); each
    # leaves another one waiting until 9. f produces at 1, 2, 3 (2 each): f leads by 10 right after
    # 0 and by 16 at 3, g then catches up by 4. Admissions at 9 end the backlog: not counted.
    waiting = {"arrival_s": 0.0, "prompt_tokens": 1000}
    later = {**waiting, "admitted_s": 9.0, "admitted_step": 5}
    record = make_record(
        requests=[
            {"request": 0, "client": "f", "prompt_tokens": 10, "admitted_s": 0.0}
            | {"admitted_step": 1, "output_tokens": 3, "decode_spans": "1-3"},
            {"request": 1, "client": "g", "prompt_tokens": 4, "admitted_s": 3.0}
            | {"admitted_step": 4, "output_tokens": 1, "decode_spans": "4-4"},
            {"request": 2, "client": "f", **later, "output_tokens": 1, "decode_spans": "5-5"},
            {"request": 3, "client": "g", **later, "output_tokens": 1, "decode_spans": "5-5"},
        ],
        steps=[step(1, 0, 1), step(2, 1, 2, 1), step(3, 2, 3, 1), step(4, 3, 9), step(5, 9, 10)],
    )
    assert max_service_gaps(record, [TOTAL]) == [16.0]
    assert max_service_gaps(record, [ServiceUnit(prompt=1.0, output=0.0)]) == [10.0]


def test_cached_tokens_are_free_in_extended_service_and_weights_divide(
    make_record: MakeRecord,
) -> None:
    first = {"admitted_s": 0.0, "admitted_step": 1, "output_tokens": 1, "decode_spans": "1-1"}
    later = {"admitted_s": 1.0, "admitted_step": 2, "output_tokens": 1, "decode_spans": "2-2"}
    record = make_record(
        requests=[
            {"request": 0, "client": "f", "weight": 4.0, "prompt_tokens": 8, "cached_tokens": 4}
            | first,
            {"request": 1, "client": "f", "weight": 4.0, "prompt_tokens": 1, **later},
            {"request": 2, "client": "g", "prompt_tokens": 1, **later},
        ],
        steps=[step(1, 0, 1), step(2, 1, 2)],
    )
    assert max_service_gaps(record, [TOTAL, EXTENDED]) == [8 / 4 + 2 / 4, 4 / 4 + 2 / 4]


def test_clients_that_never_wait_together_have_no_gap(make_record: MakeRecord) -> None:
    record = make_record(
        requests=[
            {"request": 0, "client": "f", "prompt_tokens": 50, "admitted_s": 1.0}
            | {"admitted_step": 1, "output_tokens": 1, "decode_spans": "1-1"},
            {"request": 1, "client": "g", "prompt_tokens": 1, "arrival_s": 1.5, "admitted_s": 2.0}
            | {"admitted_step": 2, "output_tokens": 1, "decode_spans": "2-2"},
        ],
        steps=[step(1, 1, 2), step(2, 2, 3)],
    )
    assert max_service_gaps(record, [TOTAL]) == [0.0]


def test_one_client_or_no_request(make_record: MakeRecord) -> None:
    assert max_service_gaps(make_record([], []), [TOTAL, EXTENDED]) == [0.0, 0.0]
    record = make_record(
        [{"admitted_step": 1, "prompt_tokens": 3, "output_tokens": 1, "decode_spans": "1-1"}],
        [step(1, 0, 1)],
    )
    assert max_service_gaps(record, [TOTAL]) == [0.0]
