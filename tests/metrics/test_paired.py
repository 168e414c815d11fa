"""Verdicts over pairs, against intervals worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.metrics.paired import judge

NAN = math.nan
VALUES = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=8)


def test_the_interval_is_that_of_the_differences() -> None:
    # Differences 1, 2, 3, 2: mean 2, variance 2/3; half width 3.182 * sqrt(2/3 / 4) = 1.299.
    change = judge([10, 20, 30, 40], [11, 22, 33, 42], better="higher")
    assert change.difference == pytest.approx((2.0, 1.299), abs=1e-3)
    assert (change.before, change.after, change.pairs) == (25.0, 27.0, 4)
    assert change.verdict == "better"
    assert judge([10, 20, 30, 40], [11, 22, 33, 42], better="lower").verdict == "worse"


def test_an_interval_that_holds_zero_is_noise() -> None:
    # Differences 1, 2, 3: mean 2, half width 4.303 / sqrt(3) = 2.484.
    assert judge([0, 0, 0], [1, 2, 3], better="higher").verdict == "within noise"


def test_a_change_counts_only_beyond_the_margin() -> None:
    # The interval of test_the_interval... begins at 0.701; 2 % of 25 is 0.5, 3 % is 0.75.
    before, after = [10, 20, 30, 40], [11, 22, 33, 42]
    assert judge(before, after, better="lower", margin=0.02).verdict == "worse"
    assert judge(before, after, better="lower", margin=0.03).verdict == "within noise"
    with pytest.raises(ValueError, match=r"margin=-0\.1: a fraction from 0 on"):
        judge(before, after, better="lower", margin=-0.1)
    with pytest.raises(ValueError, match="margin=nan"):
        judge(before, after, better="lower", margin=NAN)


def test_one_pair_has_no_interval() -> None:
    change = judge([10.0], [12.0], better="higher")
    assert change.verdict == "undecided" and math.isnan(change.difference.half_width)
    assert judge([10.0], [12.0], better="higher", margin=0.1).verdict == "better"
    assert judge([10.0], [10.5], better="higher", margin=0.1).verdict == "within noise"


def test_what_was_not_measured_makes_no_pair() -> None:
    change = judge([1, NAN, 3, 4], [2, 5, NAN, 5], better="higher")
    # Differences 1 and 1; the third pair lost what it had.
    assert (change.pairs, change.difference, change.measured) == (2, (1.0, 0.0), (3, 3))
    assert change.verdict == "lost" and change.failed
    gone = judge([1.0, 3.0], [NAN, NAN], better="higher")
    assert (gone.before, gone.verdict, gone.pairs) == (2.0, "lost", 0) and math.isnan(gone.after)
    come = judge([NAN], [1.0], better="higher")
    assert (come.after, come.verdict, come.failed) == (1.0, "gained", False)
    assert judge([NAN], [NAN], better="higher").verdict == "not measured"
    assert judge([], [], better="higher").pairs == 0


def test_what_got_worse_in_what_is_left_stays_worse() -> None:
    change = judge([1, 1, 1, NAN], [0.5, 0.5, NAN, 1], better="higher")
    assert (change.verdict, change.measured, change.pairs) == ("worse", (3, 3), 2)


@pytest.mark.filterwarnings("error")
def test_infinity_is_beyond_any_margin() -> None:
    inf = math.inf
    assert judge([1.0, 1.0], [inf, 1.0], better="lower", margin=1e9).verdict == "worse"
    assert judge([1.0], [inf], better="lower").verdict == "worse"
    assert judge([inf, 2.0], [1.0, 2.0], better="lower", margin=0.5).verdict == "better"
    assert judge([inf, inf], [inf, inf], better="lower", margin=0.5).verdict == "equal"
    # Differences 0 and 1: the infinity that both have says nothing.
    assert judge([inf, 1.0], [inf, 2.0], better="lower", margin=0.1).verdict == "within noise"
    assert judge([inf, 1.0], [1.0, inf], better="lower").verdict == "within noise"
    with pytest.raises(ValueError, match="margin=inf: a fraction from 0 on"):
        judge([1.0], [1.0], better="lower", margin=inf)


def test_rounding_is_no_difference() -> None:
    # 0.1 + 0.2 is one unit in the last place more than 0.3, in every pair.
    assert judge([0.3] * 3, [0.1 + 0.2] * 3, better="lower").verdict == "equal"
    assert judge([1e6] * 3, [1e6 * (1 + 5e-10)] * 3, better="lower").verdict == "equal"
    assert judge([1e6] * 3, [1e6 * (1 + 3e-9)] * 3, better="lower").verdict == "worse"


def test_of_differences_that_are_noise_one_in_twenty_counts_half_of_them_as_worse() -> None:
    draws = np.random.default_rng(0).normal(size=(2, 4000, 5))
    verdicts = [judge(x, y, better="higher").verdict for x, y in zip(*draws, strict=True)]
    # Two standard errors: 2 sqrt(0.05 * 0.95 / 4000) = 0.007.
    for verdict in ("better", "worse"):
        assert verdicts.count(verdict) / 4000 == pytest.approx(0.025, abs=0.007)


@given(VALUES)
def test_nothing_is_worse_than_itself(values: list[float]) -> None:
    assert judge(values, values, better="lower").verdict == "equal"


@given(VALUES, st.integers(0, 2**32 - 1))
def test_turning_the_pairs_round_turns_the_verdict_round(values: list[float], seed: int) -> None:
    other = np.asarray(values) + np.random.default_rng(seed).normal(size=len(values))
    there = judge(values, other, better="higher").verdict
    turned = {"better": "worse", "worse": "better"}
    assert judge(other, values, better="higher").verdict == turned.get(there, there)
