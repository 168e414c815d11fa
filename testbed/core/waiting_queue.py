"""WaitingQueue: sequences that wait, preempted ones first, then by arrival."""

from __future__ import annotations

from collections.abc import Iterator

from testbed.core.request import Sequence, State


class WaitingQueue:
    """A linked list through the sequences: O(1) operations, and iteration survives removal."""

    __slots__ = ("_first", "_last", "_length", "num_tokens")

    def __init__(self) -> None:
        self._first: Sequence | None = None
        self._last: Sequence | None = None
        self._length = 0
        self.num_tokens = 0
        """Sum of len(tokens) over those that wait."""

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Sequence]:
        """Front to back. Sequences removed meanwhile are skipped, as they are not WAITING."""
        sequence = self._first
        while sequence is not None:
            # A removed sequence keeps its forward link until unlink, so the walk finds its way on.
            following = sequence.queue_next
            if sequence.state is State.WAITING:
                yield sequence
            sequence = following

    def append(self, sequence: Sequence) -> None:
        """Queue at the back."""
        sequence.queue_previous, sequence.queue_next = self._last, None
        if self._last is None:
            self._first = sequence
        else:
            self._last.queue_next = sequence
        self._last = sequence
        self._length += 1
        self.num_tokens += len(sequence.tokens)

    def push_front(self, sequence: Sequence) -> None:
        """Queue at the front."""
        sequence.queue_previous, sequence.queue_next = None, self._first
        if self._first is None:
            self._last = sequence
        else:
            self._first.queue_previous = sequence
        self._first = sequence
        self._length += 1
        self.num_tokens += len(sequence.tokens)

    def remove(self, sequence: Sequence) -> None:
        """Take a queued sequence out; call unlink once nobody iterates."""
        previous, following = sequence.queue_previous, sequence.queue_next
        if previous is None:
            self._first = following
        else:
            previous.queue_next = following
        if following is None:
            self._last = previous
        else:
            following.queue_previous = previous
        self._length -= 1
        self.num_tokens -= len(sequence.tokens)

    def unlink(self, sequence: Sequence) -> None:
        """Drop a removed sequence's links, which would keep every later one in memory."""
        sequence.queue_previous = sequence.queue_next = None
