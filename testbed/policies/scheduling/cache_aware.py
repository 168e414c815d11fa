"""Admission by the longest cached prefix, with aging or in turn with the oldest request."""

from __future__ import annotations

from heapq import heappop, heappush
from math import isfinite

from testbed.core.views import SchedulerView, SequenceView
from testbed.policies.scheduling.arrival import OnMisfit
from testbed.policies.scheduling.ranked import Attentive, MatchRankedPolicy


class Lpm(MatchRankedPolicy):
    """Longest prefix match first, ties by arrival (SGLang's `lpm`, arXiv 2312.07104 Algorithm 1).

    Unlike SGLang 0.5.23 it stays LPM above 128 waiting requests: matches are kept current from tree
    events, so a pass costs what changed since the last one.

    aging: tokens that a waiting sequence's match grows by with each step since it arrived. As all
    grow alike, a cold request is passed by those only that arrive within (longest match) / aging
    steps after it. SGLang has no such term: with 0, the default, cold requests starve under load.

    dedupe_check, dedupe_share: SGLang's in-batch deduplication (32 and 32 there; -1, the default,
    is off). Of the waiting sequences with at most `dedupe_check` matched tokens, those that share
    their first `dedupe_share` tokens, rounded up to a page, with an earlier such sequence go last
    in this pass: one of them computes the prefix for all.
    """

    def __init__(
        self,
        on_misfit: OnMisfit = "stop",
        dedupe_check: int = -1,
        dedupe_share: int = 32,
        aging: float = 0.0,
    ) -> None:
        super().__init__(on_misfit)
        if dedupe_check < -1 or dedupe_share < 1:
            raise ValueError(
                f"dedupe_check={dedupe_check}, dedupe_share={dedupe_share}: "
                "at least -1 and at least 1 are needed"
            )
        if not (isfinite(aging) and aging >= 0):
            raise ValueError(f"aging={aging}: a finite number of at least 0 is needed")
        if not aging or dedupe_check >= 0:
            self.may_starve = True
        self._check = dedupe_check
        self._share = dedupe_share
        self._aging = aging
        self._head_starts: dict[int, float] = {}
        # Cold waiting sequences by namespace and first tokens.
        self._groups: dict[tuple[str, bytes], _Group] = {}
        self._group_of: dict[int, _Group] = {}
        self._bereaved: dict[tuple[str, bytes], None] = {}

    def on_start(self, view: SchedulerView) -> None:
        """Round the shared length up to a page: less cannot be reused."""
        self._view = view
        self._share = -(-self._share // view.cache.page_size) * view.cache.page_size

    def rank(self, sequence: SequenceView) -> tuple[int, float]:
        """(1 if put last, minus the match at step 0 that would have grown to today's)."""
        if self._check >= 0 and self._is_duplicate(sequence):
            return 1, 0
        return self._first_rank(sequence)

    def candidates(self, view: SchedulerView) -> Attentive:
        """Longest match first."""
        self._appoint()
        return super().candidates(view)

    def on_arrival(self, sequence: SequenceView) -> None:
        """Enter the ranking."""
        if self._aging:
            self._head_starts[sequence.index] = self._aging * self._view.step
        super().on_arrival(sequence)

    def on_admit(self, sequence: SequenceView, cached: int, extend: int) -> None:
        """Leave the ranking."""
        super().on_admit(sequence, cached, extend)
        self._leave_group(sequence)

    def on_finish(self, sequence: SequenceView) -> None:
        """Forget when it came."""
        self._head_starts.pop(sequence.index, None)

    def _first_rank(self, sequence: SequenceView) -> tuple[int, float]:
        return 0, self._head_starts.get(sequence.index, 0) - sequence.num_matched_tokens

    def _move(self, sequence: SequenceView, rank: tuple[int, float]) -> None:
        self._ranking.place(sequence, (*rank, sequence.index))

    def _is_duplicate(self, sequence: SequenceView) -> bool:
        if sequence.num_matched_tokens > self._check or sequence.num_tokens < self._share:
            self._leave_group(sequence)
            return False
        group = self._group_of.get(sequence.index)
        if group is None:
            key = (sequence.namespace, sequence.tokens[: self._share].tobytes())
            group = self._groups.setdefault(key, _Group(key))
            self._group_of[sequence.index] = group
            demoted = group.add(sequence)
            if demoted is not None:
                self._move(demoted, (1, 0))
        return group.first() is not sequence

    def _leave_group(self, sequence: SequenceView) -> None:
        group = self._group_of.pop(sequence.index, None)
        if group is None:
            return
        represented = group.first() is sequence
        del group.members[sequence.index]
        if not group.members:
            del self._groups[group.key]
        elif represented:
            self._bereaved[group.key] = None

    def _appoint(self) -> None:
        """Groups that lost their representative get the next one, from this pass on."""
        for key in self._bereaved:
            group = self._groups.get(key)
            if group is not None:
                self._move(group.first(), self._first_rank(group.first()))
        self._bereaved.clear()


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


class _Group:
    """Cold waiting sequences with equal first tokens; the earliest arrival represents them."""

    def __init__(self, key: tuple[str, bytes]) -> None:
        self.key = key
        self.members: dict[int, SequenceView] = {}
        self._order: list[int] = []

    def add(self, sequence: SequenceView) -> SequenceView | None:
        """Enter the sequence; returns whom it replaces as representative."""
        before = self.first() if self.members else None
        self.members[sequence.index] = sequence
        heappush(self._order, sequence.index)
        return before if before is not None and self.first() is sequence else None

    def first(self) -> SequenceView:
        """The earliest arrival; there is one."""
        while self._order[0] not in self.members:
            heappop(self._order)
        return self.members[self._order[0]]
