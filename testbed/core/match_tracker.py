"""MatchTracker: each waiting sequence's cached prefix, kept current from what happens to the tree.

Matching the whole queue anew at every step costs queue x prompt length, which is why SGLang stops
doing it above 128 waiting requests. Here a waiting sequence is matched once, when it starts to
wait, and is then registered at the node where its match ends; a tree event visits only the
sequences registered where it happens.
"""

from __future__ import annotations

from collections.abc import Callable

from testbed.core.radix_tree import Node, RadixTree
from testbed.core.request import Sequence


class MatchTracker:
    """Maintains num_matched_tokens and match_handle (a Node) of every tracked sequence."""

    __slots__ = ("_on_change", "_tree")

    def __init__(self, tree: RadixTree, on_change: Callable[[Sequence], None]) -> None:
        self._tree = tree
        self._on_change = on_change

    def track(self, sequence: Sequence) -> None:
        """Match the sequence once and keep its match current from now on."""
        node, depth = self._tree.match(sequence.tokens, sequence.request.namespace)
        self._register(sequence, node, depth)
        _count_up(node, 1)

    def untrack(self, sequence: Sequence) -> None:
        """Forget the sequence; its match fields keep their last values."""
        node: Node = sequence.match_handle
        _count_up(node, -1)
        if sequence.num_matched_tokens < node.end:
            del node.partial_waiters[sequence]
            return
        key = self._next_page(sequence)
        group = node.waiters[key]
        del group[sequence]
        if not group:
            del node.waiters[key]

    def on_leaf(self, leaf: Node) -> None:
        """A leaf was hung below its parent: sequences that wait for its first page match on."""
        parent = leaf.parent
        assert parent is not None
        sequences = parent.waiters.pop(leaf.key, {})
        leaf.num_waiting = len(sequences)
        for sequence in sequences:
            depth = self._tree.extend_match(leaf, sequence.tokens, parent.end)
            self._register(sequence, leaf, depth)
            self._on_change(sequence)

    def on_split(self, upper: Node, lower: Node) -> None:
        """An edge was cut: matches that end in the upper half move there, at the same length."""
        upper.num_waiting = lower.num_waiting
        if not lower.partial_waiters:
            return
        for sequence in list(lower.partial_waiters):
            if sequence.num_matched_tokens <= upper.end:
                del lower.partial_waiters[sequence]
                lower.num_waiting -= 1
                self._register(sequence, upper, sequence.num_matched_tokens)
                self._on_change(sequence)

    def on_truncate(self, leaf: Node) -> None:
        """A leaf lost its tail: longer matches now end with it."""
        affected = [s for group in leaf.waiters.values() for s in group]
        affected += [s for s in leaf.partial_waiters if s.num_matched_tokens >= leaf.end]
        leaf.waiters = {}
        for sequence in affected:
            leaf.partial_waiters.pop(sequence, None)
            shorter = sequence.num_matched_tokens > leaf.end
            self._register(sequence, leaf, leaf.end)
            if shorter:
                self._on_change(sequence)

    def on_remove(self, leaf: Node, parent: Node) -> None:
        """A leaf left the tree: every match that ended in it now ends with its parent."""
        affected = [s for group in leaf.waiters.values() for s in group]
        affected += leaf.partial_waiters
        for sequence in affected:
            self._register(sequence, parent, parent.end)
            self._on_change(sequence)

    def _register(self, sequence: Sequence, node: Node, depth: int) -> None:
        sequence.match_handle = node
        sequence.num_matched_tokens = depth
        if depth < node.end:
            node.partial_waiters[sequence] = None
        else:
            node.waiters.setdefault(self._next_page(sequence), {})[sequence] = None

    def _next_page(self, sequence: Sequence) -> bytes:
        """The page after the match; empty if the sequence has no further whole page."""
        depth = sequence.num_matched_tokens
        size = self._tree.page_size
        page = sequence.tokens[depth : depth + size]
        return page.tobytes() if len(page) == size else b""


def _count_up(node: Node | None, count: int) -> None:
    while node is not None:
        node.num_waiting += count
        node = node.parent
