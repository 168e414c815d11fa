"""Eviction that looks at the waiting queue."""

from __future__ import annotations

from itertools import islice

from testbed.core.policy import EvictionPolicy
from testbed.core.views import NodeView, SchedulerView


class LookAhead(EvictionPolicy):
    """Nodes that none of the first `window` waiting sequences matches first, least recently used
    first; then those that are matched, by the sequence that comes furthest back in the queue.

    The look-ahead eviction of CachedAttention (arXiv 2403.19708), which evicts sessions, for
    prefixes: a node is as urgent as the first waiting sequence whose match passes it; one in which
    a match ends counts whole. It takes the queue's order for the order of service, which holds for
    FCFS only, and is LRU while nobody waits. O(window * depth * log n) an eviction.
    """

    def __init__(self, window: int = 64) -> None:
        if not 1 <= window <= 1_000_000:
            raise ValueError(f"window={window}: at least 1 sequence is needed, at most 1000000")
        self._window = window
        self._wanted: dict[NodeView, int] = {}
        self._view: SchedulerView

    def on_start(self, view: SchedulerView) -> None:
        """Keep the queue at hand."""
        self._view = view

    def priority(self, node: NodeView, now: int) -> tuple[int, int, int]:
        """(1 if wanted, place in the queue negated, step of the last use)."""
        place = self._wanted.get(node)
        return (0, 0, node.last_access) if place is None else (1, -place, node.last_access)

    def reranked(self) -> list[NodeView]:
        """Nodes whose first waiting sequence is another one now."""
        wanted: dict[NodeView, int] = {}
        for place, sequence in enumerate(islice(self._view.waiting, self._window)):
            node = sequence.match_node
            while node is not None and node not in wanted:
                wanted[node] = place
                node = node.parent
        before, self._wanted = self._wanted, wanted
        changed = [node for node in wanted if before.get(node) != wanted[node]]
        return changed + [node for node in before if node not in wanted]
