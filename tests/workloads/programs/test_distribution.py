"""Spreads: what they draw, how far, and what is no distribution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.workloads.programs.distribution import (
    Distribution,
    draw_seconds,
    draw_tokens,
    max_tokens,
    require_seconds,
    require_tokens,
)


@dataclass
class Owner:
    length: Any


def draws(distribution: Distribution, count: int = 20_000) -> Any:
    generator = np.random.default_rng(7)
    return np.array([draw_tokens(distribution, generator) for _ in range(count)])


def test_a_number_is_itself() -> None:
    assert set(draws(5, 3)) == {5}
    assert max_tokens(5) == 5
    assert draw_seconds(0.5, np.random.default_rng(0)) == 0.5


def test_a_pair_is_drawn_evenly_ends_included() -> None:
    counts = np.bincount(draws((4, 8)))
    assert counts[:4].sum() == 0
    assert counts[4:] == pytest.approx([4000] * 5, rel=0.08)
    assert max_tokens((4, 8)) == 8


def test_quartiles_come_out_again() -> None:
    # The ratio of 159 to 40 is kept, around the median: 85 / sqrt(159 / 40) is 42.6.
    drawn = draws((40, 85, 159))
    quartiles = np.quantile(drawn, [0.25, 0.5, 0.75])
    assert quartiles == pytest.approx([42.6, 85, 169.5], rel=0.03)
    # Two deviations up: 85 * exp(2 * ln(159 / 40) / 1.349) = 85 * 7.737.
    assert max_tokens((40, 85, 159)) == drawn.max() == 658


def test_times_are_drawn_between_the_ends() -> None:
    generator = np.random.default_rng(1)
    times = [draw_seconds((0.05, 2.0), generator) for _ in range(2000)]
    assert 0.05 <= min(times) < 0.1
    assert 1.9 < max(times) <= 2.0
    assert np.mean(times) == pytest.approx(1.025, rel=0.03)


distributions = st.one_of(
    st.integers(1, 3000),
    st.lists(st.integers(1, 3000), min_size=2, max_size=3).map(sorted),
)


@given(distributions, st.integers(0, 1000))
def test_what_is_drawn_is_from_one_to_the_most(distribution: Any, seed: int) -> None:
    require_tokens(Owner(distribution), "length")
    generator = np.random.default_rng(seed)
    assert all(
        1 <= draw_tokens(distribution, generator) <= max_tokens(distribution) for _ in range(20)
    )


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, "7", None, (), (3, 2), (1, 2, 3, 4), (0, 5)])
def test_what_is_no_length_is_named(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"Owner.length=.*whole numbers of at least 1, rising"):
        require_tokens(Owner(wrong), "length")


@pytest.mark.parametrize("wrong", [-0.1, float("nan"), float("inf"), "1", (2.0, 1.0), (0, 1, 2)])
def test_what_is_no_time_is_named(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"Owner.length=.*finite numbers of at least 0, rising"):
        require_seconds(Owner(wrong), "length")


def test_zero_is_a_length_where_it_is_allowed() -> None:
    require_tokens(Owner(0), "length", least=0)
    assert draw_tokens(0, np.random.default_rng(0)) == 0
