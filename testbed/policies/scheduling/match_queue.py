"""MatchQueue: waiting sequences by cached prefix, longest first, at a cost of what changed."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import NamedTuple

from testbed.core.views import SequenceView

Key = tuple[int, int, int]
"""(0, or 1 if put last; minus the matched tokens, or 0 if put last; arrival order)."""


class Entry(NamedTuple):
    """A sequence's place; `number` tells its newest entry from stale ones."""

    key: Key
    number: int
    sequence: SequenceView


class MatchQueue:
    """A heap whose entries go stale when a match changes; only a sequence's newest entry counts."""

    def __init__(self) -> None:
        self._heap: list[Entry] = []
        self._entry_of: dict[int, Entry] = {}
        self._next_number = 0

    def __len__(self) -> int:
        return len(self._entry_of)

    def put(self, sequence: SequenceView, last: bool = False) -> None:
        """Enter the sequence, or move it after its match changed. `last`: behind all others."""
        key = (1, 0, sequence.index) if last else (0, -sequence.num_matched_tokens, sequence.index)
        known = self._entry_of.get(sequence.index)
        if known is not None and known.key == key:
            return
        entry = Entry(key, self._next_number, sequence)
        self._next_number += 1
        self._entry_of[sequence.index] = entry
        heappush(self._heap, entry)
        if len(self._heap) > 64 + 2 * len(self._entry_of):
            self._heap = list(self._entry_of.values())
            heapify(self._heap)

    def discard(self, sequence: SequenceView) -> None:
        """Take the sequence out."""
        self._entry_of.pop(sequence.index, None)

    def first(self) -> Entry | None:
        """The best entry; None if the queue is empty."""
        heap = self._heap
        while heap:
            if self._entry_of.get(heap[0].sequence.index) is heap[0]:
                return heap[0]
            heappop(heap)
        return None

    def in_order(self) -> list[SequenceView]:
        """Everybody, best first; O(n log n)."""
        return [entry.sequence for entry in sorted(self._entry_of.values())]
