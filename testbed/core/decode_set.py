"""DecodeSet: who decodes, and who needs a page at which of the coming decode steps."""

from __future__ import annotations

from testbed.core.request import Sequence


class DecodeSet:
    """The decoding sequences in the order in which their prefills completed.

    `clock` counts decode steps. As every member computes one token a step, the step at which its
    last page is full is known when the page is taken: nobody has to look at every member to find
    those who need one.
    """

    __slots__ = ("_due", "_page_size", "clock", "context", "members")

    def __init__(self, page_size: int) -> None:
        self._page_size = page_size
        self._due: dict[int, list[Sequence]] = {}
        self.clock = 0
        self.context = 0
        """Sum of the members' num_computed_tokens."""
        self.members: dict[Sequence, None] = {}

    def __len__(self) -> int:
        return len(self.members)

    def join(self, sequence: Sequence) -> None:
        """Its prefill is complete."""
        self.members[sequence] = None
        self.context += sequence.num_computed_tokens
        room = sequence.num_pages * self._page_size - sequence.num_computed_tokens
        self._await_page(sequence, self.clock + room)

    def leave(self, sequence: Sequence) -> None:
        """It finished or was preempted."""
        del self.members[sequence]
        self.context -= sequence.num_computed_tokens
        self._due[sequence.page_due].remove(sequence)

    def advance(self, steps: int) -> None:
        """Every member has computed one token in each of `steps` steps."""
        self.clock += steps
        self.context += steps * len(self.members)

    def num_due(self) -> int:
        """Members whose next token needs a page."""
        return len(self._due.get(self.clock, ()))

    def take_due(self, ahead: int = 0) -> list[Sequence]:
        """Members that need a page `ahead` decode steps from now; each is about to get one."""
        sequences = self._due.pop(self.clock + ahead, [])
        for sequence in sequences:
            self._await_page(sequence, self.clock + ahead + self._page_size)
        return sequences

    def _await_page(self, sequence: Sequence, clock: int) -> None:
        sequence.page_due = clock
        self._due.setdefault(clock, []).append(sequence)
