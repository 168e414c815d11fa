"""The gap as it grows: never above the exact one, and up to it where sampled at every event."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.core.records import RunRecord
from testbed.metrics.gap_curve import promised_gap, service_gap_curve
from testbed.metrics.service import EXTENDED, TOTAL
from testbed.metrics.service_gap import max_service_gaps
from tests.metrics.conftest import build_random_record, build_record


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), clients=st.integers(1, 4), points=st.integers(2, 60))
def test_it_grows_up_to_the_exact_gap_at_most(seed: int, clients: int, points: int) -> None:
    record = build_random_record(np.random.default_rng(seed), 25, clients)
    times = np.linspace(0, float(record.steps["end_s"].max()), points)
    exact = max_service_gaps(record, (TOTAL, EXTENDED))
    for unit, most in zip((TOTAL, EXTENDED), exact, strict=True):
        curve = service_gap_curve(record, unit, times)
        assert np.all(np.diff(curve) >= 0)
        assert curve[-1] <= most + 1e-9


def test_it_reaches_the_exact_gap_by_hand(make_record: Callable[..., RunRecord]) -> None:
    # b waits from 0 to 10 s; a has requests of 5 tokens admitted at 2, 4 and 6, and waits too.
    def request(number: int, client: str, admitted: float) -> dict[str, Any]:
        return {
            "request": number,
            "client": client,
            "admitted_s": admitted,
            "admitted_step": number + 1,
            "prompt_tokens": 5,
            "first_token_s": 11.0,
        }

    rows = [request(0, "a", 2.0), request(1, "a", 4.0), request(2, "a", 6.0), request(3, "b", 10.0)]
    record = make_record(rows, [])
    curve = service_gap_curve(record, TOTAL, np.array([0.0, 1.0, 3.0, 5.0, 7.0, 12.0]))
    # The admission at 6 s ends a's backlog and is outside of it.
    assert curve.tolist() == [0, 0, 5, 10, 10, 10]
    assert max_service_gaps(record, [TOTAL]) == [10.0]


@pytest.mark.parametrize(
    ("scheduler", "options", "unit", "bound"),
    [
        ("vtc", {"prompt_weight": 1.0, "output_weight": 2.0}, TOTAL, 2 * 2 * 20),
        (
            "locality_fair",
            {"window": 0.5, "prompt_weight": 1.0, "output_weight": 2.0},
            TOTAL,
            2 * 1.5 * (30 + 2 * 20),
        ),
        (
            "dlpm",
            {"quantum": 100, "extend_weight": 1, "output_weight": 2},
            EXTENDED,
            2 * (100 + 30 + 2 * 20),
        ),
    ],
)
def test_promises_are_the_papers(scheduler: str, options: Any, unit: Any, bound: float) -> None:
    # L = 30 tokens, M = 10 pages of 2; the lightest client weighs a half.
    rows = [{"prompt_tokens": 30, "weight": 0.5}, {"prompt_tokens": 8, "weight": 2.0}]
    record = build_record(rows, [])
    assert promised_gap(scheduler, options, record) == (unit, bound / 0.5)
    assert promised_gap(scheduler, {**options, "output_weight": 3.0}, record) is None
    assert promised_gap(scheduler, {}, record) is None
    assert promised_gap("fcfs", options, record) is None
