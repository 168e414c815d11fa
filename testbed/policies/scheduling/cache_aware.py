"""Admission by the longest cached prefix."""

from __future__ import annotations

from heapq import heappop, heappush

from testbed.core.policy import Proposals, SchedulingPolicy
from testbed.core.views import SchedulerView, SequenceView
from testbed.policies.scheduling.arrival import OnMisfit, check_on_misfit
from testbed.policies.scheduling.match_queue import MatchQueue


class Lpm(SchedulingPolicy):
    """Longest prefix match first, ties by arrival (SGLang's `lpm`, arXiv 2312.07104 Algorithm 1).

    Unlike SGLang 0.5.23 it stays LPM above 128 waiting requests: matches are kept current from tree
    events, so a pass costs what changed since the last one.

    dedupe_check, dedupe_share: SGLang's in-batch deduplication (32 and 32 there; -1, the default,
    is off). Of the waiting sequences with at most `dedupe_check` matched tokens, those that share
    their first `dedupe_share` tokens, rounded up to a page, with an earlier such sequence go last
    in this pass: one of them computes the prefix for all.
    """

    reacts_to_decoding = False

    def __init__(
        self, on_misfit: OnMisfit = "stop", dedupe_check: int = -1, dedupe_share: int = 32
    ) -> None:
        check_on_misfit(on_misfit)
        if dedupe_check < -1 or dedupe_share < 1:
            raise ValueError(
                f"dedupe_check={dedupe_check}, dedupe_share={dedupe_share}: "
                "at least -1 and at least 1 are needed"
            )
        self._stop = on_misfit == "stop"
        self._check = dedupe_check
        self._share = dedupe_share
        self._queue = MatchQueue()
        # Cold waiting sequences by namespace and first tokens.
        self._groups: dict[tuple[str, bytes], _Group] = {}
        self._group_of: dict[int, _Group] = {}
        self._bereaved: dict[tuple[str, bytes], None] = {}

    def on_start(self, view: SchedulerView) -> None:
        """Round the shared length up to a page: less cannot be reused."""
        self._share = -(-self._share // view.cache.page_size) * view.cache.page_size

    def candidates(self, view: SchedulerView) -> Proposals:
        """Longest match first."""
        self._appoint()
        passed: dict[int, SequenceView] = {}
        try:
            while (best := self._queue.first()) is not None:
                sequence = best.sequence
                if sequence.index not in passed:
                    outcome = yield sequence
                    if outcome:
                        continue
                    if self._stop:
                        return
                    passed[sequence.index] = sequence
                self._queue.discard(sequence)
        finally:
            for sequence in passed.values():
                self._place(sequence)

    def on_arrival(self, sequence: SequenceView) -> None:
        """Enter the queue."""
        self._place(sequence)

    def on_match(self, sequence: SequenceView) -> None:
        """Move to where the new match belongs."""
        self._place(sequence)

    def on_preempt(self, sequence: SequenceView) -> None:
        """Enter the queue again."""
        self._place(sequence)

    def on_admit(self, sequence: SequenceView, cached: int, extend: int) -> None:
        """Leave the queue."""
        self._queue.discard(sequence)
        self._leave_group(sequence)

    def _place(self, sequence: SequenceView) -> None:
        self._queue.put(sequence, last=self._check >= 0 and self._is_duplicate(sequence))

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
                self._queue.put(demoted, last=True)
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
                self._queue.put(group.first())
        self._bereaved.clear()


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
