"""EvictionIndex: the next victim in O(log n), whatever the number of leaves."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Any

from testbed.core.radix_tree import Node


class EvictionIndex:
    """A heap of (priority, insertion order, entry number, node) over evictable leaves.

    A node is entered anew whenever it becomes evictable or its priority may have changed, and only
    its newest entry counts. So a key may become less urgent (LRU) or more urgent (MRU): a heap that
    merely re-checks what it pops is wrong for the latter, because a node that should go first now
    would stay buried under its old key.
    """

    __slots__ = ("_heap", "_next_entry")

    def __init__(self) -> None:
        self._heap: list[tuple[Any, int, int, Node]] = []
        self._next_entry = 1

    def enter(self, node: Node, priority: Any) -> None:
        """Note that the evictable leaf has this priority now."""
        node.entry = self._next_entry
        self._next_entry += 1
        heappush(self._heap, (priority, node.serial, node.entry, node))

    def first(self) -> Node | None:
        """The evictable leaf with the smallest priority; None if there is none."""
        heap = self._heap
        while heap:
            _, _, entry, node = heap[0]
            # `node.evictable`, spelt out: this is the hottest line of an eviction.
            current = node.entry == entry and not node.locks and not node.children
            if current and node.parent is not None:
                return node
            heappop(heap)
        return None

    def compact(self, num_nodes: int) -> None:
        """Drop stale entries once they outnumber the tree's nodes; O(1) amortised."""
        if len(self._heap) > 64 + 2 * num_nodes:
            self._heap = [e for e in self._heap if e[3].entry == e[2] and e[3].evictable]
            heapify(self._heap)
