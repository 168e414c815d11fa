"""In-batch deduplication: of cold requests that share a beginning, one goes first."""

from __future__ import annotations

from abc import abstractmethod
from heapq import heappop, heappush
from typing import Any

from testbed.core.views import SchedulerView, SequenceView
from testbed.policies.scheduling.arrival import OnMisfit
from testbed.policies.scheduling.ranked import Attentive, MatchRankedPolicy


class DeduplicatingPolicy(MatchRankedPolicy):
    """A MatchRankedPolicy that puts duplicates last (SGLang 0.5.23: 32 and 32; -1 is off).

    Of the waiting sequences with at most `dedupe_check` matched tokens, those that share their
    first `dedupe_share` tokens, rounded up to a page, with an earlier such sequence go last in this
    pass: one of them computes the prefix for all.
    """

    def __init__(
        self, on_misfit: OnMisfit = "stop", dedupe_check: int = -1, dedupe_share: int = 32
    ) -> None:
        super().__init__(on_misfit)
        if dedupe_check < -1 or dedupe_share < 1:
            raise ValueError(
                f"dedupe_check={dedupe_check}, dedupe_share={dedupe_share}: "
                "at least -1 and at least 1 are needed"
            )
        self._check = dedupe_check
        self._share = dedupe_share
        # Cold waiting sequences by namespace and first tokens.
        self._groups: dict[tuple[str, bytes], _Group] = {}
        self._group_of: dict[int, _Group] = {}
        self._bereaved: dict[tuple[str, bytes], None] = {}

    @abstractmethod
    def first_rank(self, sequence: SequenceView) -> tuple[Any, ...]:
        """Where the sequence belongs if it is no duplicate: the smallest goes first."""

    def rank(self, sequence: SequenceView) -> tuple[Any, ...]:
        """(0, first_rank), or (1,) if put last."""
        if self._check >= 0 and self._is_duplicate(sequence):
            return (1,)
        return 0, *self.first_rank(sequence)

    def on_start(self, view: SchedulerView) -> None:
        """Round the shared length up to a page: less cannot be reused."""
        self._share = -(-self._share // view.cache.page_size) * view.cache.page_size

    def candidates(self, view: SchedulerView) -> Attentive:
        """The smallest rank first; groups that lost their first one have the next by now."""
        for key in self._bereaved:
            group = self._groups.get(key)
            if group is not None:
                self._move(group.first(), (0, *self.first_rank(group.first())))
        self._bereaved.clear()
        return super().candidates(view)

    def on_admit(self, sequence: SequenceView, cached: int, extend: int) -> None:
        """Leave the ranking."""
        super().on_admit(sequence, cached, extend)
        self._leave_group(sequence)

    def _move(self, sequence: SequenceView, rank: tuple[Any, ...]) -> None:
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
                self._move(demoted, (1,))
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
