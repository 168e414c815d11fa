from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.workloads import zipf
from testbed.workloads.zipf import zipf_draws


def test_ordered_pairs_come_as_often_as_sequential_draws() -> None:
    drawn = zipf_draws(3, 1.0, 2, 20_000, np.random.default_rng(0))
    pairs, counts = np.unique(drawn, axis=0, return_counts=True)
    # Weights of 6, 3 and 2 of 11: the first by weight, the second by weight among the rest.
    expected = {
        (0, 1): 6 / 11 * 3 / 5,
        (0, 2): 6 / 11 * 2 / 5,
        (1, 0): 3 / 11 * 6 / 8,
        (1, 2): 3 / 11 * 2 / 8,
        (2, 0): 2 / 11 * 6 / 9,
        (2, 1): 2 / 11 * 3 / 9,
    }
    seen = {(int(a), int(b)): count / 20_000 for (a, b), count in zip(pairs, counts, strict=True)}
    # Three standard deviations of a share are at most 0.01.
    assert seen == pytest.approx(expected, abs=0.01)


@given(
    values=st.integers(1, 9),
    rows=st.integers(0, 9),
    exponent=st.floats(0, 10),
    at_a_time=st.integers(1, 40),
    data=st.data(),
)
def test_rows_drawn_together_are_those_drawn_apart(
    values: int, rows: int, exponent: float, at_a_time: int, data: st.DataObject
) -> None:
    picks = data.draw(st.integers(1, values))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(zipf, "_DRAWS_AT_A_TIME", at_a_time)
        together = zipf_draws(values, exponent, picks, rows, np.random.default_rng(5))
    generator = np.random.default_rng(5)
    for row in together:
        assert row.tolist() == zipf_draws(values, exponent, picks, 1, generator)[0].tolist()
        assert len(set(row.tolist())) == picks
        assert 0 <= row.min() <= row.max() < values
