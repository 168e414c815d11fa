"""MatchQueue: waiting sequences by cached prefix, longest first, at a cost of what changed."""

from __future__ import annotations

from testbed.core.views import SequenceView
from testbed.policies.scheduling.ranked import Ranking

Key = tuple[int, int]
"""(minus the matched tokens, arrival order)."""


class MatchQueue(Ranking[SequenceView]):
    """A Ranking of sequences by match; ties by arrival."""

    def put(self, sequence: SequenceView) -> None:
        """Enter the sequence, or move it after its match changed."""
        self.place(sequence, (-sequence.num_matched_tokens, sequence.index))
