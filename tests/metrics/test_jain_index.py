"""Jain's index, and its mean over windows of common backlog."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from testbed.metrics.fairness import jain_index, mean_jain_index
from testbed.metrics.service import TOTAL, backlog_of, service_curve


@pytest.mark.parametrize(
    ("values", "expected"),
    [([2, 1], 0.9), ([10, 1], 121 / 202), ([3, 3, 3], 1.0), ([5, 0, 0, 0], 0.25), ([0, 0], 1.0)],
)
def test_known_values(values: list[float], expected: float) -> None:
    assert jain_index(values) == pytest.approx(expected)


def admitted(client: str, arrival_s: float, admitted_s: float, tokens: int) -> dict[str, Any]:
    return {
        "client": client,
        "arrival_s": arrival_s,
        "admitted_s": admitted_s,
        "admitted_step": 1,
        "prompt_tokens": tokens,
    }


def test_only_windows_of_common_backlog_count_and_only_who_waits_in_them(make_record: Any) -> None:
    # Windows of 10 s. In [0, 10] a and b wait throughout and get 20 and 10; c comes and goes. In
    # [10, 20] a and b get 10 each. In [20, 30] b waits alone.
    record = make_record(
        [
            admitted("a", 0, 5, 20),
            admitted("a", 1, 15, 10),
            admitted("a", 2, 22, 10),
            admitted("b", 0, 5, 10),
            admitted("b", 1, 15, 10),
            admitted("b", 2, 31, 10),
            admitted("c", 3, 4, 99),
        ],
        [],
    )
    assert mean_jain_index(record, TOTAL, window_s=10.0) == pytest.approx((0.9 + 1.0) / 2)
    assert math.isnan(mean_jain_index(record, TOTAL, window_s=40.0))


def test_one_client_has_no_index(make_record: Any) -> None:
    assert math.isnan(mean_jain_index(make_record([admitted("a", 0, 9, 1)], []), TOTAL, 1.0))
    assert math.isnan(mean_jain_index(make_record([], []), TOTAL, 1.0))


def test_a_run_that_takes_no_time_has_no_index(make_record: Any) -> None:
    record = make_record([admitted("a", 0, 0, 1), admitted("b", 0, 0, 1)], [])
    assert math.isnan(mean_jain_index(record, TOTAL, 0.0))


def test_backlog_joins_what_overlaps_or_touches(make_record: Any) -> None:
    record = make_record(
        [
            admitted("b", 0, 1, 1),
            admitted("a", 4, 5, 1),
            admitted("a", 0, 3, 1),
            admitted("a", 1, 2, 1),
            admitted("a", 5, 6, 1),
            {"client": "a", "status": "refused", "admitted_step": -1, "admitted_s": -1},
        ],
        [],
    )
    client, start_s, end_s = backlog_of(record)
    assert client.tolist() == [0, 0, 1]
    assert start_s.tolist() == [0, 4, 0]
    assert end_s.tolist() == [3, 6, 1]


def test_service_counts_a_token_when_its_step_ends(make_record: Any) -> None:
    record = make_record(
        [
            {**admitted("a", 0, 0, 7), "weight": 2.0, "output_tokens": 3, "decode_spans": "1-3"},
            {**admitted("b", 0, 1, 5), "output_tokens": 1, "decode_spans": "2-2"},
        ],
        [
            {"step": 1, "end_s": 1.0},
            {"step": 2, "start_s": 1.0, "end_s": 2.0, "decode_rows": 1},
            {"step": 3, "start_s": 2.0, "end_s": 3.0, "decode_rows": 1},
        ],
    )
    curve = service_curve(record, TOTAL, np.array([-1.0, 0.0, 0.9, 1.0, 2.0, 9.0]))
    assert curve[:, 0].tolist() == [0, 3.5, 3.5, 4.5, 5.5, 6.5]
    assert curve[:, 1].tolist() == [0, 0, 0, 5, 7, 7]
