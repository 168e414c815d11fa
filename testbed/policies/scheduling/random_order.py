"""Admission in random order."""

from __future__ import annotations

from random import Random

from testbed.core.policy import Proposals, SchedulingPolicy
from testbed.core.views import SchedulerView, SequenceView
from testbed.policies.seeds import check_seed


class RandomOrder(SchedulingPolicy):
    """A fresh shuffle of the queue at every pass, which ends at the first misfit (SGLang's
    `random`). The baseline that any order should beat; how long one may wait is left to chance.

    Drawn one by one as the pass goes on, so that a pass costs what it proposes, not the queue.
    """

    may_starve = True

    def __init__(self, seed: int = 0) -> None:
        check_seed(seed)
        self._random = Random(seed)
        self._queue: list[SequenceView] = []
        self._place_of: dict[int, int] = {}

    def candidates(self, view: SchedulerView) -> Proposals:
        """One of those left, each as likely as the others."""
        for left in range(len(self._queue) - 1, -1, -1):
            drawn = self._random.randrange(left + 1)
            sequence, last = self._queue[drawn], self._queue[left]
            self._put(drawn, last)
            self._put(left, sequence)
            if not (yield sequence):
                return

    def on_arrival(self, sequence: SequenceView) -> None:
        """Enter the queue."""
        self._queue.append(sequence)
        self._place_of[sequence.index] = len(self._queue) - 1

    def on_preempt(self, sequence: SequenceView) -> None:
        """Enter the queue again."""
        self.on_arrival(sequence)

    def on_admit(self, sequence: SequenceView, cached: int, extend: int) -> None:
        """Leave the queue."""
        place = self._place_of.pop(sequence.index)
        last = self._queue.pop()
        if last is not sequence:
            self._put(place, last)

    def _put(self, place: int, sequence: SequenceView) -> None:
        self._queue[place] = sequence
        self._place_of[sequence.index] = place
