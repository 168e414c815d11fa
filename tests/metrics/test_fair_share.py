"""Water filling and what clients were given beside it, by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.core.records import RunRecord
from testbed.metrics.fair_share import (
    fair_share_distance,
    max_min_share,
    service_difference,
    service_windows,
)
from testbed.metrics.service import EXTENDED, TOTAL, ServiceUnit

MakeRecord = Callable[..., RunRecord]


@pytest.mark.parametrize(
    ("demands", "capacity", "shares"),
    [
        ([5, 5], 20, [5, 5]),
        ([10, 10], 8, [4, 4]),
        ([1, 10, 10], 9, [1, 4, 4]),
        ([10, 2, 3], 9, [4, 2, 3]),
        # The proportional experiment of VTC: 192 and 384 are asked for and met.
        ([192, 384, 1152], 1325, [192, 384, 749]),
        ([], 5, []),
        ([0, 7], 5, [0, 5]),
    ],
)
def test_water_filling(demands: list[float], capacity: float, shares: list[float]) -> None:
    assert max_min_share(demands, capacity).tolist() == pytest.approx(shares)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=8), st.integers(0, 200))
def test_nobody_can_get_more_without_somebody_poorer_getting_less(
    demands: list[int], capacity: int
) -> None:
    shares = max_min_share(demands, capacity)
    assert shares.sum() == pytest.approx(min(capacity, sum(demands)))
    assert np.all(shares <= np.array(demands) + 1e-9)
    short = shares < np.array(demands) - 1e-9
    if short.any():
        assert shares[short].min() == pytest.approx(shares.max())


def prefill(request: int, client: str, at: float, arrival: float, **fields: Any) -> dict[str, Any]:
    """Admitted at `at` for 4 prompt tokens, and one output token a second later: 4 + 2."""
    return {
        "request": request,
        "client": client,
        "arrival_s": arrival,
        "admitted_s": at,
        "first_token_s": at + 1,
        "finish_s": at + 1,
        "prompt_tokens": 4,
        "output_tokens": 1,
        "admitted_step": int(at) + 1,
        "decode_spans": f"{int(at) + 1}-{int(at) + 1}",
        **fields,
    }


@pytest.fixture
def greedy(make_record: MakeRecord) -> RunRecord:
    """a asks eight times at once and is served in the first four seconds; then b's two."""
    requests = [prefill(n, "a", float(n), 0.0) for n in range(4)]
    requests += [prefill(4, "b", 4.0, 0.0), prefill(5, "b", 5.0, 0.0)]
    requests += [prefill(6 + n, "a", 6.0 + n, 8.0 if n == 3 else 0.0) for n in range(4)]
    steps = [{"step": n + 1, "start_s": float(n), "end_s": n + 1.0} for n in range(10)]
    return make_record(requests, steps)


def test_windows_hold_what_was_asked_given_and_owed(greedy: RunRecord) -> None:
    given, asked, owed = service_windows(greedy, TOTAL, 4.0)
    # The window (0, 4]: four prompts at 0, 1, 2 and 3 (the one at 0 is before it began) and the
    # prompt at 4, tokens at 1, 2, 3 and 4. Three of a's prompts and four tokens; b's first prompt.
    assert given.tolist() == [[3 * 4 + 4 * 2, 4], [3 * 4 + 2 * 2, 4 + 2 * 2]]
    # Everybody but a's last arrives in the first window, at its very beginning.
    assert asked.tolist() == [[7 * 6, 2 * 6], [6, 0]]
    assert owed.tolist() == [[7 * 6 - 4, 12], [8 * 6 - 24, 12 - 4]]


def test_the_distance_is_what_another_client_should_have_had(greedy: RunRecord) -> None:
    # Of 24 in the first window both are owed 12 or more: a has 20, b 4. In the second, a is owed 24
    # and b 8 of 24: b has its 8.
    distance = fair_share_distance(service_windows(greedy, TOTAL, 4.0))
    assert distance == pytest.approx(8 / 48)


def test_the_difference_counts_who_asked_and_was_not_served(greedy: RunRecord) -> None:
    difference = service_difference(service_windows(greedy, TOTAL, 4.0))
    # First window: b is 16 behind, and 8 short of what it asked for. Second: b is 8 behind, and
    # asked for nothing while it got 8.
    assert (difference.largest, difference.mean, difference.variance) == (8, 8, 0)


def test_weights_divide(make_record: MakeRecord) -> None:
    requests = [prefill(n, "ab"[n % 2], float(n), 0.0, weight=1.0 + n % 2) for n in range(4)]
    requests[-1]["arrival_s"] = 3.0
    record = make_record(
        requests, [{"step": n + 1, "start_s": n, "end_s": n + 1} for n in range(4)]
    )
    given, asked, _ = service_windows(record, TOTAL, 3.0)
    assert asked.tolist() == [[12, 6]]
    assert given.tolist() == [[4 + 2 * 2, (4 + 4 + 2) / 2]]


def test_cached_tokens_are_free_of_extended_charge(make_record: MakeRecord) -> None:
    requests = [prefill(0, "a", 1.0, 0.0, cached_tokens=3), prefill(1, "b", 2.0, 2.0)]
    record = make_record(
        requests, [{"step": n + 1, "start_s": n, "end_s": n + 1} for n in range(3)]
    )
    assert service_windows(record, EXTENDED, 2.0).asked.tolist() == [[1 + 2, 6]]
    free = ServiceUnit(0.0, 1.0)
    assert service_windows(record, free, 2.0).asked.tolist() == [[1, 1]]


def test_without_a_window_there_is_nothing_to_say(make_record: MakeRecord) -> None:
    record = make_record([prefill(0, "a", 0.0, 0.0)], [{"step": 1, "start_s": 0, "end_s": 1}])
    windows = service_windows(record, TOTAL, 60.0)
    assert math.isnan(fair_share_distance(windows))
    assert all(math.isnan(value) for value in service_difference(windows))
