"""Admission by the longest cached prefix, with aging or in turn with the oldest request."""

from __future__ import annotations

from math import isfinite

from testbed.core.views import SchedulerView, SequenceView
from testbed.policies.scheduling.arrival import OnMisfit
from testbed.policies.scheduling.deduplication import DeduplicatingPolicy
from testbed.policies.scheduling.ranked import Attentive, MatchRankedPolicy


class Lpm(DeduplicatingPolicy):
    """Longest prefix match first, ties by arrival (SGLang's `lpm`, arXiv 2312.07104 Algorithm 1).

    Matches are kept current from tree events, so a pass costs what changed since the last one.

    fcfs_above: with more waiting sequences than this a pass goes by arrival (SGLang 0.5.23: 128,
    as matching costs it more); 0, the default, stays LPM.

    aging: tokens that a waiting sequence's match grows by with each step since it arrived. As all
    grow alike, a cold request is passed by those only that arrive within (longest match) / aging
    steps after it. SGLang has no such term: with 0, the default, cold requests starve under load.

    dedupe_check, dedupe_share: see DeduplicatingPolicy.
    """

    def __init__(
        self,
        on_misfit: OnMisfit = "stop",
        dedupe_check: int = -1,
        dedupe_share: int = 32,
        aging: float = 0.0,
        fcfs_above: int = 0,
    ) -> None:
        super().__init__(on_misfit, dedupe_check, dedupe_share)
        if fcfs_above < 0:
            raise ValueError(f"fcfs_above={fcfs_above}: at least 0 is needed")
        self._fcfs_above = fcfs_above
        if not (isfinite(aging) and aging >= 0):
            raise ValueError(f"aging={aging}: a finite number of at least 0 is needed")
        if not aging or dedupe_check >= 0:
            self.may_starve = True
        self._aging = aging
        self._head_starts: dict[int, float] = {}

    def candidates(self, view: SchedulerView) -> Attentive:
        """Longest match first."""
        if 0 < self._fcfs_above < len(view.waiting):
            return self._by_arrival(view)
        return super().candidates(view)

    def _by_arrival(self, view: SchedulerView) -> Attentive:
        for sequence in view.waiting:
            if not (yield sequence) and self._stop:
                return

    def first_rank(self, sequence: SequenceView) -> tuple[float]:
        """Minus the match at step 0 that would have grown to today's."""
        return (self._head_starts.get(sequence.index, 0) - sequence.num_matched_tokens,)

    def on_start(self, view: SchedulerView) -> None:
        """Keep the step counter at hand."""
        super().on_start(view)
        self._view = view

    def on_arrival(self, sequence: SequenceView) -> None:
        """Enter the ranking."""
        if self._aging:
            self._head_starts[sequence.index] = self._aging * self._view.step
        super().on_arrival(sequence)

    def on_finish(self, sequence: SequenceView) -> None:
        """Forget when it came."""
        self._head_starts.pop(sequence.index, None)


class KLpm(MatchRankedPolicy):
    """k-LPM: the front of the queue, then k - 1 longest matches, in turn (arXiv 2502.04677).

    k=1 is FCFS, a large k LPM. Counted in admissions; the pass ends at the first misfit, so that
    nobody waits for more than k times its place in the queue.
    """

    def __init__(self, k: int = 2) -> None:
        if k < 1:
            raise ValueError(f"k={k}: at least 1 is needed")
        super().__init__()
        self._k = k
        self._picks = 0

    def rank(self, sequence: SequenceView) -> tuple[int]:
        """Minus the match."""
        return (-sequence.num_matched_tokens,)

    def candidates(self, view: SchedulerView) -> Attentive:
        """The front of the queue for every k-th pick, else the longest match."""
        while (best := self._ranking.first()) is not None:
            turn = self._picks % self._k
            if not (yield next(iter(view.waiting)) if turn == 0 else best.item):
                return

    def on_admit(self, sequence: SequenceView, cached: int, extend: int) -> None:
        """Leave the ranking; a pick is done."""
        super().on_admit(sequence, cached, extend)
        self._picks += 1
