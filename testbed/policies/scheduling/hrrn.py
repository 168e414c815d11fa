"""Admission by the response ratio: how long a request waited against how much it asks for."""

from __future__ import annotations

from math import inf

from testbed.core.policy import Proposals, SchedulingPolicy
from testbed.core.views import SchedulerView, SequenceView
from testbed.policies.scheduling.arrival import OnMisfit, check_on_misfit


class Hrrn(SchedulingPolicy):
    """Highest response ratio next, by prefilled tokens (SGLang's `hrrn`).

    Largest (tokens that were prefilled since the request arrived) / (its uncached tokens) first,
    fully cached ones before all others, ties by arrival. Prefilled tokens are counted when their
    sequence is admitted. Idle time does not age anybody, since the clock counts tokens. Unlike
    SGLang's it does not fall back to arrival order above 128 waiting requests, and duplicates in
    the queue are not deferred. A stream of fully cached requests starves the others.

    Ratios overtake one another as the clock goes on, so every pass sorts the queue: O(n log n).
    """

    reacts_to_decoding = False
    may_starve = True

    def __init__(self, on_misfit: OnMisfit = "stop") -> None:
        check_on_misfit(on_misfit)
        self._stop = on_misfit == "stop"
        self._prefilled = 0
        self._prefilled_before: dict[int, int] = {}

    def candidates(self, view: SchedulerView) -> Proposals:
        """The queue as it ranks at the start of the pass."""

        def rank(sequence: SequenceView) -> tuple[float, int]:
            uncached = sequence.num_tokens - sequence.num_matched_tokens
            aged = self._prefilled - self._prefilled_before[sequence.index]
            return -(aged / uncached if uncached else inf), sequence.index

        for sequence in sorted(view.waiting, key=rank):
            outcome = yield sequence
            if not outcome and self._stop:
                return

    def on_arrival(self, sequence: SequenceView) -> None:
        """Note the clock."""
        self._prefilled_before[sequence.index] = self._prefilled

    def on_admit(self, sequence: SequenceView, cached: int, extend: int) -> None:
        """Move the clock on."""
        self._prefilled += extend

    def on_finish(self, sequence: SequenceView) -> None:
        """Forget the request."""
        del self._prefilled_before[sequence.index]
