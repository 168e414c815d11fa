"""Rates that change over time: on and off, ramps, shifts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from testbed.workloads.arrivals import Times
from testbed.workloads.parameters import require_between, require_positive

MAX_FACTOR = 1e6


@dataclass(frozen=True)
class Phase:
    """`seconds` during which a client's rate is multiplied by `factor`.

    end_factor: what the factor has become at the end, changing linearly; None keeps it.
    """

    seconds: float
    factor: float
    end_factor: float | None = None

    def __post_init__(self) -> None:
        require_positive(self, "seconds")
        require_between(self, "factor", 0, MAX_FACTOR)
        if self.end_factor is not None:
            require_between(self, "end_factor", 0, MAX_FACTOR)


def arrivals_of(units: Times, rate: float, phases: Sequence[Phase], duration: float) -> Times:
    """The times below `duration` at which rate * factor, summed over time, reaches each unit.

    units: ascending, float64. Phases follow each other and start anew after the last one. A unit
    process of any kind keeps its kind: evenly spaced units give evenly spaced arrivals within a
    phase of constant factor, Poisson units an inhomogeneous Poisson process.
    """
    cycle = sum(phase.seconds for phase in phases)
    count = len(phases) * (int(duration // cycle) + 1)
    seconds = np.resize([phase.seconds for phase in phases], count)
    first = rate * np.resize([phase.factor for phase in phases], count)
    last = rate * np.resize(
        [phase.factor if phase.end_factor is None else phase.end_factor for phase in phases], count
    )
    reached = np.concatenate(([0.0], np.cumsum(seconds * (first + last) / 2)))
    starts = np.concatenate(([0.0], np.cumsum(seconds)))
    units = units[units <= reached[-1]]
    # A unit on a boundary belongs to the next phase that sends anything.
    place = np.clip(np.searchsorted(reached, units, side="right") - 1, 0, count - 1)
    rest = units - reached[place]
    slope = (last[place] - first[place]) / seconds[place]
    # rest = first * t + slope * t^2 / 2, solved without dividing by a slope that may be 0.
    root = np.sqrt(np.maximum(first[place] ** 2 + 2 * slope * rest, 0.0))
    divisor = first[place] + root
    inside = np.divide(2 * rest, divisor, out=np.zeros_like(rest), where=divisor > 0)
    times: Times = starts[place] + inside
    return times[times < duration]
