"""Seeds of the policies that draw lots."""

from __future__ import annotations


def check_seed(seed: int) -> None:
    """Raise ValueError if it is negative: random.Random draws alike for -1 and for 1."""
    if seed < 0:
        raise ValueError(f"seed={seed}: at least 0 is needed")
