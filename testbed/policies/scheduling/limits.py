"""Limits at arrival: a client that asks too often is turned away or made to wait, then FCFS.

Not work conserving: what is refused or delayed is not served even if the replica is idle.
"""

from __future__ import annotations

from collections import deque
from math import inf, isfinite, nextafter
from typing import Literal

from testbed.core.policy import Delay, Refuse
from testbed.core.views import SchedulerView, SequenceView
from testbed.policies.scheduling.arrival import Fcfs, OnMisfit

Action = Literal["refuse", "delay"]
"""Turn the request away, or let it in as soon as the limit allows, in arrival order."""

MAX_LIMIT = 1_000_000
MAX_WINDOW = 1e9
"""Seconds."""
MIN_TOKENS, MAX_TOKENS = 1e-9, 1e15
"""Of a bucket, and of what it gets in a second."""


def _check_action(action: str) -> None:
    if action not in ("refuse", "delay"):
        raise ValueError(f"action={action!r}: refuse or delay is needed")


class RpmLimit(Fcfs):
    """At most `limit` of a client's requests in any `window` seconds (the VTC artifact's `lshare`).

    Counted are those let in; one that came exactly `window` seconds ago still counts. The artifact
    refuses, with limits of 5 to 30 a minute.
    """

    def __init__(
        self,
        limit: int = 30,
        window: float = 60.0,
        action: Action = "refuse",
        on_misfit: OnMisfit = "stop",
    ) -> None:
        super().__init__(on_misfit)
        if not 1 <= limit <= MAX_LIMIT:
            raise ValueError(f"limit={limit}: at least 1 is needed, at most {MAX_LIMIT}")
        if not 0 < window <= MAX_WINDOW:
            raise ValueError(
                f"window={window}: seconds, more than 0, are needed, at most {MAX_WINDOW:g}"
            )
        _check_action(action)
        self._limit = limit
        self._window = window
        self._refuses = action == "refuse"
        # When the newest `limit` requests of each client were let in, or will be.
        self._let_in: dict[str, deque[float]] = {}
        self._promised: set[int] = set()

    def on_start(self, view: SchedulerView) -> None:
        """Take the clock."""
        self._view = view

    def on_arrival(self, sequence: SequenceView) -> Refuse | Delay | None:
        """Let it in if fewer than `limit` were in the window before."""
        if sequence.index in self._promised:
            self._promised.discard(sequence.index)
            return None
        now = self._view.now
        times = self._let_in.setdefault(sequence.client, deque(maxlen=self._limit))
        if len(times) == self._limit and now <= times[0] + self._window:
            if self._refuses:
                return Refuse(f"over {self._limit} requests in {self._window:g} s")
            until = nextafter(times[0] + self._window, inf)
            times.append(until)
            self._promised.add(sequence.index)
            return Delay(until)
        times.append(now)
        return None


class TokenBucket(Fcfs):
    """A bucket of tokens for each client, filled at rate * weight a second up to burst * weight.

    A request takes prompt_weight * prompt + output_weight * expected output (its hint, else its
    declared limit) at arrival; if the bucket holds less, it is refused, or delayed until the bucket
    has refilled. One that costs more than the whole bucket is always refused. The rule of API
    gateways; which tokens count is our reading.
    """

    def __init__(
        self,
        rate: float = 1000.0,
        burst: float = 60_000.0,
        action: Action = "delay",
        prompt_weight: float = 1.0,
        output_weight: float = 1.0,
        on_misfit: OnMisfit = "stop",
    ) -> None:
        super().__init__(on_misfit)
        for name, value in (("rate", rate), ("burst", burst)):
            if not MIN_TOKENS <= value <= MAX_TOKENS:
                raise ValueError(
                    f"{name}={value}: a number from {MIN_TOKENS:g} to {MAX_TOKENS:g} is needed"
                )
        for name, value in (("prompt_weight", prompt_weight), ("output_weight", output_weight)):
            if not (isfinite(value) and value >= 0):
                raise ValueError(f"{name}={value}: a finite number of at least 0 is needed")
        _check_action(action)
        self._rate = rate
        self._burst = burst
        self._refuses = action == "refuse"
        self._prompt_weight = prompt_weight
        self._output_weight = output_weight
        # Per client, what the bucket held (less than 0 if promised) and when.
        self._buckets: dict[str, tuple[float, float]] = {}
        self._promised: set[int] = set()

    def on_start(self, view: SchedulerView) -> None:
        """Take the clock."""
        self._view = view

    def on_arrival(self, sequence: SequenceView) -> Refuse | Delay | None:
        """Take the request's tokens from the bucket, now or when they will be there."""
        if sequence.index in self._promised:
            self._promised.discard(sequence.index)
            return None
        now = self._view.now
        rate, size = self._rate * sequence.weight, self._burst * sequence.weight
        held, then = self._buckets.get(sequence.client, (size, now))
        held = min(size, held + rate * (now - then))
        output = sequence.expected_output or sequence.max_new_tokens
        cost = self._prompt_weight * sequence.num_prompt_tokens + self._output_weight * output
        if cost > size:
            return Refuse(f"costs {cost:g} tokens, the bucket holds {size:g}")
        if cost > held and self._refuses:
            return Refuse(f"costs {cost:g} tokens, {held:g} are left")
        self._buckets[sequence.client] = held - cost, now
        until = now + max(0.0, cost - held) / rate
        if until <= now:
            return None
        self._promised.add(sequence.index)
        return Delay(until)
