"""Checks of workload parameters: each names the field, its value and what is accepted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

MAX_LENGTH = 10_000_000
"""Tokens; a longer prompt or output is taken for a mistake."""

MIN_RATE, MAX_RATE = 1e-9, 1e9
"""Requests per second: one in thirty years, a thousand in a microsecond. Also of a speedup."""


def require_int(owner: object, name: str, least: int, most: int | None = None) -> None:
    """Raise ValueError unless the field is a whole number from `least` to `most`."""
    value: Any = getattr(owner, name)
    limit = f"of at least {least}" if most is None else f"from {least} to {most}"
    if (
        isinstance(value, bool)
        or not isinstance(value, int | np.integer)
        or value < least
        or (most is not None and value > most)
    ):
        raise ValueError(f"{_field(owner, name, value)}: a whole number {limit} is needed")


def require_positive(owner: object, name: str) -> None:
    """Raise ValueError unless the field is a finite number above zero."""
    value: Any = getattr(owner, name)
    if not _is_finite(value) or value <= 0:
        raise ValueError(f"{_field(owner, name, value)}: a finite number above 0 is needed")


def require_rate(owner: object, name: str) -> None:
    """Raise ValueError unless the field is a number that times can be divided by.

    Far outside of these bounds times overflow, or lose their differences to rounding.
    """
    value: Any = getattr(owner, name)
    if not _is_finite(value) or not MIN_RATE <= value <= MAX_RATE:
        raise ValueError(
            f"{_field(owner, name, value)}: a finite number above 0 is needed, from {MIN_RATE:g} "
            f"to {MAX_RATE:g}"
        )


def require_between(owner: object, name: str, least: float, most: float) -> None:
    """Raise ValueError unless the field is a number from `least` to `most`."""
    value: Any = getattr(owner, name)
    if not _is_finite(value) or not least <= value <= most:
        raise ValueError(
            f"{_field(owner, name, value)}: a number from {least:g} to {most:g} is needed"
        )


def require_one_of(owner: object, name: str, accepted: Sequence[str]) -> None:
    """Raise ValueError unless the field is one of the accepted words."""
    value: Any = getattr(owner, name)
    if value not in accepted:
        raise ValueError(f"{_field(owner, name, value)}: one of {', '.join(accepted)} is needed")


def _is_finite(value: Any) -> bool:
    is_number = isinstance(value, int | float | np.integer | np.floating)
    try:
        return is_number and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:
        # A whole number that no float holds.
        return False


def _field(owner: object, name: str, value: Any) -> str:
    return f"{type(owner).__name__}.{name}={value!r}"
