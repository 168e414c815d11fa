"""Whether something changed for the better, judged from paired runs."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from testbed.metrics.intervals import Interval, mean_interval

Verdict = Literal[
    "better", "worse", "within noise", "equal", "undecided", "lost", "gained", "not measured"
]
"""equal: no pair differs. undecided: one pair, and no margin to judge it by. lost: in at least one
pair measured before and not after. gained: measured after alone."""
EQUAL = 1e-9
"""Values that differ by no larger part of themselves are equal: so much comes from rounding."""


class Change(NamedTuple):
    """after less before, over the pairs in which both were measured.

    before, after: means over these pairs; without any, each over what it was measured in.
    difference: mean with its paired 95 % t interval. measured: in how many pairs it was measured
    before, and after.
    """

    before: float
    after: float
    difference: Interval
    pairs: int
    verdict: Verdict
    measured: tuple[int, int]

    @property
    def failed(self) -> bool:
        """Whether something got worse, or can no longer be told."""
        return self.verdict in ("worse", "lost")


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
    pair has no interval: it is undecided, unless a margin above 0 is given to judge it by. An
    infinite difference is beyond any margin. Raises ValueError for a margin that is no number from
    0 on.
    """
    if not 0 <= margin < math.inf:
        raise ValueError(f"margin={margin}: a fraction from 0 on is needed")
    x, y = np.asarray(before, dtype=np.float64), np.asarray(after, dtype=np.float64)
    known = ~np.isnan(x), ~np.isnan(y)
    counts = (int(known[0].sum()), int(known[1].sum()))
    both = known[0] & known[1]
    lost = bool((known[0] & ~known[1]).any())
    if not both.any():
        verdict: Verdict = "lost" if lost else "gained" if counts[1] else "not measured"
        nothing = Interval(math.nan, math.nan)
        return Change(_mean(x[known[0]]), _mean(y[known[1]]), nothing, 0, verdict, counts)
    x, y = x[both], y[both]
    differences, same = _differences(x, y)
    difference = (
        mean_interval(differences)
        if np.isfinite(differences).all()
        else Interval(_mean(differences), math.nan)
    )
    room = margin * abs(_mean(x[np.isfinite(x)])) if margin else 0.0
    verdict = _verdict(difference, better, margin, room, same)
    if lost and verdict != "worse":
        verdict = "lost"
    return Change(_mean(x), _mean(y), difference, len(x), verdict, counts)


def _mean(values: npt.NDArray[np.float64]) -> float:
    """NaN for none, and for infinities of both signs."""
    with np.errstate(invalid="ignore"):
        return float(values.mean()) if len(values) else math.nan


def _differences(
    x: npt.NDArray[np.float64], y: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.float64], bool]:
    """y less x, 0 where both are the same infinity; and whether all are equal."""
    with np.errstate(invalid="ignore"):
        differences = np.where(x == y, 0.0, y - x)
        rounding = np.abs(differences) <= EQUAL * np.maximum(np.abs(x), np.abs(y))
    # Against infinity, everything finite would be rounding.
    same = (x == y) | (rounding & np.isfinite(differences))
    return differences, bool(same.all())


def _verdict(
    difference: Interval, better: Literal["higher", "lower"], margin: float, room: float, same: bool
) -> Verdict:
    mean, half_width = difference
    if same:
        return "equal"
    if math.isnan(mean):
        return "within noise"
    if math.isinf(mean):
        half_width = room = 0.0
    if math.isnan(half_width):
        if margin == 0:
            return "undecided"
        half_width = 0.0
    if abs(mean) - half_width <= room:
        return "within noise"
    return "better" if (mean > 0) == (better == "higher") else "worse"
