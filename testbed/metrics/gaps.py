"""Where the lost hit rate went: three gaps that sum up to what the best order would reach.

All four rates are of the same requests, at the same page size and with the same rules on what a
match may return. The template gap is lost in the prompts, the capacity gap in a cache that is too
small, the scheduling gap in the order of service.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Lever = Literal["template", "capacity", "scheduling"]


@dataclass(frozen=True)
class Gaps:
    """best_bound: sharing bound of the best order of segments; NaN where none are known. bound: of
    the order at hand.

    depth_first: hit rate of the `dfs` scheduler with the same arrivals and cache. measured: hit
    rate of the policy at hand. Rates from 0 to 1. A gap may be negative: serving depth first is
    the best offline (arXiv 2312.07104, Theorem 3.1), yet a policy may beat it on requests that
    arrive over time. ValueError for a rate outside 0 to 1.
    """

    best_bound: float
    bound: float
    depth_first: float
    measured: float

    def __post_init__(self) -> None:
        for name in ("best_bound", "bound", "depth_first", "measured"):
            unknown = name == "best_bound" and math.isnan(self.best_bound)
            if not (unknown or 0 <= getattr(self, name) <= 1):
                raise ValueError(f"Gaps.{name}={getattr(self, name)}: a rate from 0 to 1 is needed")

    @property
    def template(self) -> float:
        """What a better order of the segments could win, at any cache size; NaN if unknown."""
        return self.best_bound - self.bound

    @property
    def capacity(self) -> float:
        """What depth-first service loses to a cache of this size."""
        return self.bound - self.depth_first

    @property
    def scheduling(self) -> float:
        """What depth-first service would win over the policy at hand."""
        return self.depth_first - self.measured

    @property
    def by_lever(self) -> Mapping[Lever, float]:
        """The three gaps; with `measured` they sum up to best_bound."""
        return {
            "template": self.template,
            "capacity": self.capacity,
            "scheduling": self.scheduling,
        }

    @property
    def largest(self) -> Lever | None:
        """The lever that promises the most; None if no gap is above 0."""
        gaps = {lever: gap for lever, gap in self.by_lever.items() if gap > 0}
        return max(gaps, key=gaps.__getitem__, default=None)
