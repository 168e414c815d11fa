"""Whether something changed for the better, judged from paired runs."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from testbed.metrics.intervals import Interval, mean_interval

Verdict = Literal["better", "worse", "within noise", "equal", "undecided", "not measured"]
"""equal: no pair differs. undecided: one pair, and no margin to judge it by."""


class Change(NamedTuple):
    """after less before, over the pairs in which both were measured.

    before, after: means over these pairs. difference: mean with its paired 95 % t interval.
    """

    before: float
    after: float
    difference: Interval
    pairs: int
    verdict: Verdict


def judge(
    before: npt.ArrayLike,
    after: npt.ArrayLike,
    *,
    better: Literal["higher", "lower"],
    margin: float = 0.0,
) -> Change:
    """Compare two values a pair, float64[pairs] each, in the same order; NaN is not measured.

    The interval is Student's t over the differences, which take what the pairs share (the seed, the
    workload) out of the noise; it supposes that they are independent and roughly normal. A change
    counts once the whole interval lies beyond `margin`, a fraction of the mean before. A single
    pair has no interval: it is undecided, unless a margin above 0 is given to judge it by. Raises
    ValueError for a negative margin.
    """
    if not margin >= 0:
        raise ValueError(f"margin={margin}: a fraction from 0 on is needed")
    x, y = np.asarray(before, dtype=np.float64), np.asarray(after, dtype=np.float64)
    measured = ~(np.isnan(x) | np.isnan(y))
    x, y = x[measured], y[measured]
    if not len(x):
        return Change(math.nan, math.nan, Interval(math.nan, math.nan), 0, "not measured")
    difference = mean_interval(y - x)
    verdict = _verdict(
        difference, better, margin, margin * abs(float(x.mean())), bool((x == y).all())
    )
    return Change(float(x.mean()), float(y.mean()), difference, len(x), verdict)


def _verdict(
    difference: Interval, better: Literal["higher", "lower"], margin: float, room: float, same: bool
) -> Verdict:
    mean, half_width = difference
    if same:
        return "equal"
    if math.isnan(half_width):
        if margin == 0:
            return "undecided"
        half_width = 0.0
    if abs(mean) - half_width <= room:
        return "within noise"
    return "better" if (mean > 0) == (better == "higher") else "worse"
