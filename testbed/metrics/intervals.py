"""Means over seeds, and how sure they are."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

# fmt: off
T_975 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)
# fmt: on
"""97.5 % quantiles of Student's t for 1 to 30 degrees of freedom."""
Z_975 = 1.959964


class Interval(NamedTuple):
    """mean +- half_width holds the true mean with 95 % confidence; NaN half_width for one value."""

    mean: float
    half_width: float


def t_975(degrees: int) -> float:
    """The 97.5 % quantile of Student's t; degrees is at least 1."""
    if degrees < 1:
        raise ValueError(f"degrees={degrees}: at least 1 is needed")
    if degrees <= len(T_975):
        return T_975[degrees - 1]
    # Abramowitz and Stegun 26.7.5; off by less than 1e-4 from here on.
    z = Z_975
    first = (z**3 + z) / (4 * degrees)
    second = (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)
    return z + first + second


def mean_interval(values: npt.ArrayLike) -> Interval:
    """The mean of independent samples, one a seed, with its 95 % confidence interval.

    NaN, where a run had nothing to measure, makes the mean NaN.
    """
    x = np.asarray(values, dtype=np.float64)
    if len(x) == 0:
        return Interval(math.nan, math.nan)
    if len(x) == 1:
        return Interval(float(x[0]), math.nan)
    spread = float(x.std(ddof=1)) / math.sqrt(len(x))
    return Interval(float(x.mean()), t_975(len(x) - 1) * spread)
