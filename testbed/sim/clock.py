"""Clock: SimPy's environment with events at absolute instants."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappush
from typing import Any

import simpy

LOOKS = 0
"""Priority of looks at the fleet, which come before all that happens at their instant."""
ARRIVALS = 1
"""Priority of events that make work (SimPy's NORMAL)."""
STEPS = 2
"""Priority of step ends: at equal times, arrivals are seen first."""


class Clock(simpy.Environment):
    """Events are placed at the instant itself, as now + (instant - now) may miss it by a rounding,
    and a run of decode steps must end exactly when its steps one by one would."""

    def at(
        self, instant: float, priority: int, callback: Callable[[simpy.Event], None] | None = None
    ) -> simpy.Event:
        """An event that happens at `instant`, in seconds and not in the past, and calls back."""
        event = simpy.Event(self)
        event._ok, event._value = True, None
        if callback is not None:
            event.callbacks.append(callback)
        queue: list[Any] = self._queue
        heappush(queue, (instant, priority, next(self._eid), event))
        return event
