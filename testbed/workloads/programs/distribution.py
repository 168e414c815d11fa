"""How much a length or a time varies, in one short value."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import NormalDist
from typing import Any, TypeAlias

import numpy as np

from testbed.workloads.parameters import MAX_LENGTH

Distribution: TypeAlias = float | Sequence[float]
"""A number; (least, most), drawn evenly; or quartiles (25 %, 50 %, 75 %) of a log-normal draw.

The log-normal has the median, and the ratio of the outer two as its own; draws beyond two standard
deviations are moved there, so that every distribution has a largest value.
"""

_QUARTILE = NormalDist().inv_cdf(0.75)
_FURTHEST = 2.0


def require_tokens(owner: object, *names: str, least: int = 1) -> None:
    """Raise ValueError unless each field is a distribution of whole numbers from `least` on."""
    for name in names:
        values = _values(getattr(owner, name))
        is_whole = all(isinstance(v, int | np.integer) and not isinstance(v, bool) for v in values)
        if not (is_whole and _rises(values, least) and values[-1] <= MAX_LENGTH):
            raise ValueError(_refusal(owner, name, f"whole numbers of at least {least}"))


def require_seconds(owner: object, *names: str) -> None:
    """Raise ValueError unless each field is a distribution of finite numbers from 0 on."""
    for name in names:
        values = _values(getattr(owner, name))
        is_number = all(
            isinstance(v, int | float | np.number) and not isinstance(v, bool) and math.isfinite(v)
            for v in values
        )
        if not (is_number and _rises(values, 0)):
            raise ValueError(_refusal(owner, name, "finite numbers of at least 0"))


def draw_tokens(distribution: Distribution, generator: np.random.Generator) -> int:
    """One whole number, at least 1 by quartiles; a distribution that is a number draws nothing."""
    values = _values(distribution)
    if len(values) == 2:
        return int(generator.integers(values[0], values[1], endpoint=True))
    return max(round(_draw(values, generator)), 1 if len(values) == 3 else 0)


def draw_seconds(distribution: Distribution, generator: np.random.Generator) -> float:
    """One number; a distribution that is a number draws nothing."""
    values = _values(distribution)
    if len(values) == 2:
        return float(generator.uniform(values[0], values[1]))
    return _draw(values, generator)


def max_tokens(distribution: Distribution) -> int:
    """The largest number of tokens that draw_tokens can return."""
    values = _values(distribution)
    if len(values) < 3:
        return int(values[-1])
    return round(_scaled(values, _FURTHEST))


def _draw(values: tuple[Any, ...], generator: np.random.Generator) -> float:
    if len(values) == 1:
        return float(values[0])
    normal = float(generator.standard_normal())
    return _scaled(values, min(max(normal, -_FURTHEST), _FURTHEST))


def _scaled(quartiles: tuple[Any, ...], deviations: float) -> float:
    low, median, high = quartiles
    return float(median * (high / low) ** (deviations / (2 * _QUARTILE)))


def _values(distribution: Any) -> tuple[Any, ...]:
    return tuple(distribution) if isinstance(distribution, Sequence) else (distribution,)


def _rises(values: tuple[Any, ...], least: float) -> bool:
    """Whether 1 to 3 values never fall, from `least` on; quartiles start above 0."""
    ordered = all(a <= b for a, b in pairwise(values))
    return (
        1 <= len(values) <= 3
        and ordered
        and values[0] >= least
        and (len(values) < 3 or values[0] > 0)
    )


def _refusal(owner: object, name: str, kind: str) -> str:
    return (
        f"{type(owner).__name__}.{name}={getattr(owner, name)!r}: one number, (least, most) or "
        f"(quartile, median, quartile) is needed, {kind}, rising"
    )
