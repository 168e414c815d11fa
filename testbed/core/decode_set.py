"""DecodeSet: who decodes, and who needs a page or finishes at which of the coming steps."""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np

from testbed.core.request import Sequence


class DecodeSet:
    """The decoding sequences in the order in which their prefills completed.

    `clock` counts decode steps. Every member computes and produces one token a step, so the steps
    at which its last page is full and at which it finishes are known in advance, and a step costs
    what happens in it, not the size of the batch. A member's own token counts are derived from the
    clock (see Sequence.num_generated_tokens) and written down when it leaves.
    """

    __slots__ = (
        "_due",
        "_finish_clocks",
        "_finishing",
        "_page_size",
        "_readers",
        "clock",
        "context",
        "members",
        "shared",
    )

    def __init__(self, page_size: int, num_pages: int) -> None:
        self._page_size = page_size
        # By page id, the members that had computed the whole page when they joined.
        self._readers = np.zeros(num_pages, dtype=np.int32)
        self._due: dict[int, list[Sequence]] = {}
        self._finishing: dict[int, list[Sequence]] = {}
        self._finish_clocks: list[int] = []
        self.clock = 0
        self.context = 0
        """Sum of the members' num_computed_tokens."""
        self.shared = 0
        """Of `context`, tokens in pages that a member who joined before reads too."""
        self.members: dict[Sequence, None] = {}

    def __len__(self) -> int:
        return len(self.members)

    def join(self, sequence: Sequence) -> None:
        """Its prefill is complete and its next token produced."""
        self.members[sequence] = None
        self.context += sequence.num_computed_tokens
        # Only whole pages are ever shared, and whoever joins has found or published them already.
        pages = sequence.pages[: sequence.num_computed_tokens // self._page_size]
        others = self._readers[pages]
        self._readers[pages] = others + 1
        self.shared += int(np.count_nonzero(others)) * self._page_size
        room = sequence.num_pages * self._page_size - sequence.num_computed_tokens
        self._await_page(sequence, self.clock + room)
        finish = self.clock + sequence.num_output_tokens - sequence.num_generated_tokens
        if finish not in self._finishing:
            self._finishing[finish] = []
            heappush(self._finish_clocks, finish)
        self._finishing[finish].append(sequence)
        sequence.finish_due = finish
        sequence.decode_set = self
        sequence.joined_clock = self.clock

    def leave(self, sequence: Sequence) -> None:
        """It finished or was preempted: write down how far it came. Its pages are still its own."""
        del self.members[sequence]
        pages = sequence.pages[: sequence.num_joined_computed // self._page_size]
        others = self._readers[pages] - 1
        self._readers[pages] = others
        self.shared -= int(np.count_nonzero(others)) * self._page_size
        self._due[sequence.page_due].remove(sequence)
        if sequence.finish_due in self._finishing:
            self._finishing[sequence.finish_due].remove(sequence)
        steps = self.clock - sequence.joined_clock
        sequence.decode_set = None
        sequence.num_joined_computed += steps
        sequence.num_joined_generated += steps
        self.context -= sequence.num_computed_tokens

    def advance(self, steps: int) -> None:
        """Every member has computed one token in each of `steps` steps."""
        self.clock += steps
        self.context += steps * len(self.members)

    def num_due(self) -> int:
        """Members whose next token needs a page."""
        return len(self._due.get(self.clock, ()))

    def fits_ahead(self, steps: int, available: int) -> bool:
        """Whether the pages suffice for the `steps` - 1 steps after the one in flight."""
        size = self._page_size
        if len(self.members) * (steps // size + 1) <= available:
            return True
        return available >= sum(
            [
                len(self._due.get(self.clock + ahead, ())) * -((ahead - steps) // size)
                for ahead in range(1, min(size + 1, steps))
            ]
        )

    def take_due(self) -> list[Sequence]:
        """Members whose next token needs a page; each is about to get one."""
        sequences = self._due.pop(self.clock, [])
        for sequence in sequences:
            self._await_page(sequence, self.clock + self._page_size)
        return sequences

    def take_due_ahead(self, steps: int) -> list[tuple[int, list[Sequence]]]:
        """Who needs a page in which of the `steps` - 1 steps after the one in flight, in order.

        Each is about to get them all: (steps from now, members that need a page then).
        """
        size = self._page_size
        due: list[tuple[int, list[Sequence]]] = []
        # After the step in flight everybody's last page has room for at most one page of tokens,
        # so whoever is due does so within a page of steps, and then once a page.
        for ahead in range(1, min(size + 1, steps)):
            sequences = self._due.pop(self.clock + ahead, None)
            if sequences:
                due.append((ahead, sequences))
                last = ahead + (steps - 1 - ahead) // size * size
                for sequence in sequences:
                    self._await_page(sequence, self.clock + last + size)
        return [
            (first + again, sequences)
            for again in range(0, steps, size)
            for first, sequences in due
            if first + again < steps
        ]

    def steps_to_finish(self) -> int:
        """Decode steps until the first member finishes, the step in flight included."""
        clocks = self._finish_clocks
        while not self._finishing.get(clocks[0]):
            self._finishing.pop(heappop(clocks), None)
        return clocks[0] - self.clock

    def finish_now(self, sequence: Sequence) -> None:
        """The member's newest token is its last one, before its limit."""
        if sequence.finish_due == self.clock:
            return
        self._finishing[sequence.finish_due].remove(sequence)
        sequence.finish_due = self.clock
        self._finishing.setdefault(self.clock, []).append(sequence)

    def take_finished(self) -> list[Sequence]:
        """Members that have produced their last token: at their limit, then before it."""
        return self._finishing.pop(self.clock, [])

    def _await_page(self, sequence: Sequence, clock: int) -> None:
        sequence.page_due = clock
        self._due.setdefault(clock, []).append(sequence)
