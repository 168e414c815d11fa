"""PrefixTree: who used each distinct prefix last, for a stream of prompts in pages."""

from __future__ import annotations

import numpy as np

from testbed.workloads.prefix_hashes import Hashes


class PrefixTree:
    """Prompts as paths of page numbers, each of which names all pages before it as well.

    Pages that are always used together are one node. By node: parent (-1: none), start and end
    (pages from the root), latest (the request that used it last), is_leaf (nobody went on from
    it). A node keeps its end for good: where it is cut, the upper part becomes a new one. By
    request: end_node (-1 without any page).
    """

    def __init__(self) -> None:
        self.parent: list[int] = []
        self.start: list[int] = []
        self.end: list[int] = []
        self.latest: list[int] = []
        self.is_leaf: list[bool] = []
        self.end_node: list[int] = []
        self._edges: list[Hashes] = []
        self._by_first_page: dict[int, int] = {}

    def match(self, path: Hashes) -> tuple[int, int]:
        """The node where the longest known prefix ends (-1: none), and its pages. Changes nothing.

        The prefix may end inside the node.
        """
        node, depth = -1, 0
        while depth < len(path):
            child = self._by_first_page.get(int(path[depth]))
            if child is None:
                break
            edge = self._edges[child]
            rest = path[depth : depth + len(edge)]
            # Pages agree up to one point, and nowhere behind it.
            depth += int(np.count_nonzero(edge[: len(rest)] == rest))
            node = child
            if depth < self.end[child]:
                break
        return node, depth

    def add(self, path: Hashes) -> None:
        """The next request uses all pages of the path."""
        request = len(self.end_node)
        node, depth = self.match(path)
        if node >= 0 and depth < self.end[node]:
            node = self._cut(node, depth)
        if depth < len(path):
            node = self._new(node, depth, path[depth:].copy())
        self.end_node.append(node)
        while node >= 0:
            self.latest[node] = request
            node = self.parent[node]

    def node_at(self, request: int, depth: int) -> int:
        """The node of the request's path that holds its page number `depth`, counted from 1."""
        node = self.end_node[request]
        while self.start[node] >= depth:
            node = self.parent[node]
        return node

    def prefix(self, node: int, depth: int) -> Hashes:
        """The first `depth` pages of the path to the end of the node."""
        parts = []
        while node >= 0:
            if self.start[node] < depth:
                parts.append(self._edges[node][: depth - self.start[node]])
            node = self.parent[node]
        return np.concatenate(parts[::-1] or [np.empty(0, dtype=np.uint64)])

    def _new(self, parent: int, start: int, edge: Hashes) -> int:
        self.parent.append(parent)
        self.start.append(start)
        self.end.append(start + len(edge))
        self.latest.append(-1)
        self.is_leaf.append(True)
        if parent >= 0:
            self.is_leaf[parent] = False
        self._edges.append(edge)
        self._by_first_page[int(edge[0])] = len(self.end) - 1
        return len(self.end) - 1

    def _cut(self, lower: int, depth: int) -> int:
        """Make the part of the node above `depth` a node of its own."""
        edge, start = self._edges[lower], self.start[lower]
        upper = self._new(self.parent[lower], start, edge[: depth - start])
        self.latest[upper], self.is_leaf[upper] = self.latest[lower], False
        self._edges[lower] = edge[depth - start :]
        self.parent[lower], self.start[lower] = upper, depth
        self._by_first_page[int(edge[depth - start])] = lower
        return upper
