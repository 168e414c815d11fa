"""MatchQueue: waiting sequences by cached prefix, longest first, at a cost of what changed."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from testbed.core.views import SequenceView

Key = tuple[int, int, int]
"""(0, or 1 if put last; minus the matched tokens, or 0 if put last; arrival order)."""


class MatchQueue:
    """A heap whose entries go stale when a match changes; only a sequence's newest entry counts."""

    def __init__(self) -> None:
        self._heap: list[tuple[Key, SequenceView]] = []
        self._key_of: dict[int, Key] = {}

    def __len__(self) -> int:
        return len(self._key_of)

    def put(self, sequence: SequenceView, last: bool = False) -> None:
        """Enter the sequence, or move it after its match changed. `last`: behind all others."""
        key = (1, 0, sequence.index) if last else (0, -sequence.num_matched_tokens, sequence.index)
        if self._key_of.get(sequence.index) == key:
            return
        self._key_of[sequence.index] = key
        heappush(self._heap, (key, sequence))
        if len(self._heap) > 64 + 2 * len(self._key_of):
            self._heap = [entry for entry in self._heap if self._is_current(entry)]
            heapify(self._heap)

    def discard(self, sequence: SequenceView) -> None:
        """Take the sequence out."""
        self._key_of.pop(sequence.index, None)

    def first(self) -> tuple[Key, SequenceView] | None:
        """The best entry; None if the queue is empty."""
        heap = self._heap
        while heap:
            if self._is_current(heap[0]):
                return heap[0]
            heappop(heap)
        return None

    def pop(self) -> SequenceView:
        """Take the best entry out of a queue that is not empty."""
        best = self.first()
        assert best is not None
        heappop(self._heap)
        del self._key_of[best[1].index]
        return best[1]

    def _is_current(self, entry: tuple[Key, SequenceView]) -> bool:
        key, sequence = entry
        return self._key_of.get(sequence.index) == key
