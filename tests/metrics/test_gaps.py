from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.metrics.gaps import Gaps

rates = st.floats(0, 1)


def test_the_scrambled_lesson_at_180_blocks() -> None:
    """0.960 is possible, 0.795 in this order, all of it depth first, 0.176 first come."""
    gaps = Gaps(best_bound=0.960, bound=0.795, depth_first=0.795, measured=0.176)
    assert gaps.by_lever == pytest.approx({"template": 0.165, "capacity": 0.0, "scheduling": 0.619})
    assert gaps.largest == "scheduling"


@given(rates, rates, rates, rates)
def test_gaps_sum_up(best: float, bound: float, depth_first: float, measured: float) -> None:
    gaps = Gaps(best, bound, depth_first, measured)
    assert measured + sum(gaps.by_lever.values()) == pytest.approx(best)


def test_without_known_segments_the_template_gap_is_unknown() -> None:
    gaps = Gaps(best_bound=math.nan, bound=0.8, depth_first=0.7, measured=0.4)
    assert math.isnan(gaps.template)
    assert (gaps.capacity, gaps.scheduling) == pytest.approx((0.1, 0.3))
    assert gaps.largest == "scheduling"


def test_no_lever_where_there_is_no_gap() -> None:
    assert Gaps(0.5, 0.5, 0.5, 0.6).largest is None


@pytest.mark.parametrize("rate", [-0.1, 1.1, float("nan")])
def test_rates_are_checked(rate: float) -> None:
    with pytest.raises(ValueError, match=r"Gaps\.depth_first"):
        Gaps(1.0, 1.0, rate, 0.5)
