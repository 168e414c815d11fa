"""Orders that are kept between passes: a Ranking, and the policy that proposes by one."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator, Hashable
from heapq import heapify, heappop, heappush
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from testbed.core.policy import Outcome, SchedulingPolicy
from testbed.core.views import SchedulerView, SequenceView
from testbed.policies.scheduling.arrival import OnMisfit, check_on_misfit

Item = TypeVar("Item", bound=Hashable)
Attentive: TypeAlias = Generator[SequenceView, Outcome, None]
"""Proposals that hear their outcomes."""


class Ranked(NamedTuple, Generic[Item]):
    """An item's place; `number` tells its newest place from stale ones."""

    key: tuple[Any, ...]
    number: int
    item: Item


class Ranking(Generic[Item]):
    """Items by key, smallest first, at a cost of O(log n) a change.

    A heap whose entries go stale when a key changes; only an item's newest entry counts. Keys of
    different items must differ.
    """

    def __init__(self) -> None:
        self._heap: list[Ranked[Item]] = []
        self._newest: dict[Item, Ranked[Item]] = {}
        self._next_number = 0

    def __len__(self) -> int:
        return len(self._newest)

    def __contains__(self, item: Item) -> bool:
        return item in self._newest

    def place(self, item: Item, key: tuple[Any, ...]) -> None:
        """Enter the item, or move it to where its new key belongs."""
        known = self._newest.get(item)
        if known is not None and known.key == key:
            return
        ranked = Ranked(key, self._next_number, item)
        self._next_number += 1
        self._newest[item] = ranked
        heappush(self._heap, ranked)
        if len(self._heap) > 64 + 2 * len(self._newest):
            self._heap = list(self._newest.values())
            heapify(self._heap)

    def discard(self, item: Item) -> None:
        """Take the item out."""
        self._newest.pop(item, None)

    def first(self) -> Ranked[Item] | None:
        """Who has the smallest key; None if nobody is ranked."""
        heap = self._heap
        while heap:
            if self._newest.get(heap[0].item) is heap[0]:
                return heap[0]
            heappop(heap)
        return None

    def in_order(self) -> list[Item]:
        """Everybody, smallest key first; O(n log n)."""
        return [ranked.item for ranked in sorted(self._newest.values())]


class RankedPolicy(SchedulingPolicy):
    """Proposes by a rank that changes only when a hook is called, and is kept between passes."""

    reacts_to_decoding = False

    def __init__(self, on_misfit: OnMisfit = "stop") -> None:
        check_on_misfit(on_misfit)
        self._stop = on_misfit == "stop"
        if not self._stop:
            self.may_starve = True
        self._ranking: Ranking[SequenceView] = Ranking()

    @abstractmethod
    def rank(self, sequence: SequenceView) -> tuple[Any, ...]:
        """Where the sequence belongs: the smallest goes first, ties by arrival."""

    def enqueue(self, sequence: SequenceView) -> None:
        """Put the sequence where its rank belongs now."""
        self._ranking.place(sequence, (*self.rank(sequence), sequence.index))

    def on_refusal(self, sequence: SequenceView, outcome: Outcome) -> None:
        """A proposal did not fit."""

    def candidates(self, view: SchedulerView) -> Attentive:
        """The smallest rank first."""
        passed: dict[int, SequenceView] = {}
        try:
            while (best := self._ranking.first()) is not None:
                sequence = best.item
                # An eviction meanwhile may have ranked again who was passed over.
                if sequence.index not in passed:
                    outcome = yield sequence
                    if outcome:
                        continue
                    self.on_refusal(sequence, outcome)
                    if self._stop:
                        return
                    passed[sequence.index] = sequence
                self._ranking.discard(sequence)
        finally:
            for sequence in passed.values():
                self.enqueue(sequence)

    def on_arrival(self, sequence: SequenceView) -> None:
        """Enter the ranking."""
        self.enqueue(sequence)

    def on_preempt(self, sequence: SequenceView) -> None:
        """Enter the ranking again."""
        self.enqueue(sequence)

    def on_admit(self, sequence: SequenceView, cached: int, extend: int) -> None:
        """Leave the ranking."""
        self._ranking.discard(sequence)


class MatchRankedPolicy(RankedPolicy):
    """A RankedPolicy whose rank depends on the cached prefix."""

    def on_match(self, sequence: SequenceView) -> None:
        """Move to where the new match belongs."""
        self.enqueue(sequence)
