"""Admission in depth-first order: of the waiting requests' trie, or of the cache's radix tree."""

from __future__ import annotations

from collections.abc import Iterator

from testbed.core.page_pool import EMPTY_PAGES
from testbed.core.policy import Proposals, SchedulingPolicy
from testbed.core.radix_tree import Node, RadixTree
from testbed.core.views import NodeView, SchedulerView, SequenceView
from testbed.policies.scheduling.arrival import OnMisfit, check_on_misfit
from testbed.policies.scheduling.match_queue import MatchQueue


class Dfs(SchedulingPolicy):
    """Depth-first order of the waiting requests' own trie: optimal hits offline (arXiv 2312.07104,
    Theorem 3.1), for any eviction rule, if every request is known and the cache holds the longest.

    Pre-order; a prompt that ends at a node before its extensions, children by first arrival.
    """

    reacts_to_decoding = False
    may_starve = True

    def __init__(self, on_misfit: OnMisfit = "stop") -> None:
        check_on_misfit(on_misfit)
        self._stop = on_misfit == "stop"
        self._trie = RadixTree(page_size=1)
        self._node_of: dict[int, Node] = {}

    def candidates(self, view: SchedulerView) -> Proposals:
        """The trie in pre-order."""
        if self._stop:
            # Whoever is admitted leaves the trie, so the next in pre-order is the new first.
            while (sequence := self._first()) is not None:
                if not (yield sequence):
                    return
        else:
            for sequence in list(self._preorder()):
                yield sequence

    def on_arrival(self, sequence: SequenceView) -> None:
        """Enter the trie."""
        self._insert(sequence)

    def on_preempt(self, sequence: SequenceView) -> None:
        """Enter the trie again."""
        self._insert(sequence)

    def on_admit(self, sequence: SequenceView, cached: int, extend: int) -> None:
        """Leave the trie, and with it every node that nobody needs any more."""
        node = self._node_of.pop(sequence.index)
        del node.state[sequence.index]
        while node.parent is not None and not node.state and not node.children:
            parent = node.parent
            self._trie.remove(node)
            node = parent

    def _insert(self, sequence: SequenceView) -> None:
        tokens = sequence.tokens
        node, depth = self._trie.match(tokens, sequence.namespace)
        if depth < node.end:
            node = self._trie.split(node, depth)
            node.state = {}
        if depth < len(tokens):
            node = self._trie.add_leaf(node, tokens[depth:], EMPTY_PAGES)
            node.state = {}
        node.state[sequence.index] = sequence
        self._node_of[sequence.index] = node

    def _first(self) -> SequenceView | None:
        node = next((root for root in self._trie.roots() if root.children), None)
        while node is not None:
            if node.state:
                first: SequenceView = next(iter(node.state.values()))
                return first
            node = next(iter(node.children.values()))
        return None

    def _preorder(self) -> Iterator[SequenceView]:
        return (sequence for node in self._trie.nodes() for sequence in node.state.values())


class DfsWeight(SchedulingPolicy):
    """Depth-first through the cache's radix tree, heavier subtrees first (SGLang's `dfs-weight`).

    A node weighs the waiting sequences whose match ends in its subtree; a node's own come after
    its children's, those that end deeper inside the edge first, as they would be further down if
    it were split. Ties by insertion order, then by arrival. Without a tree: arrival order. SGLang
    walks the whole tree at every pass; here a pass walks from the roots to whom it proposes.
    """

    reacts_to_decoding = False
    may_starve = True

    def __init__(self, on_misfit: OnMisfit = "stop") -> None:
        check_on_misfit(on_misfit)
        self._stop = on_misfit == "stop"
        self._queues: dict[NodeView, MatchQueue] = {}
        self._node_of: dict[int, NodeView] = {}

    def candidates(self, view: SchedulerView) -> Proposals:
        """The cached tree in post-order, heavier children first."""
        roots = list(view.cache.roots())
        passed: set[int] = set()
        for queue in self._postorder(roots):
            if not self._stop:
                # An eviction meanwhile may move who was passed over to a node still ahead.
                for sequence in queue.in_order():
                    if sequence.index not in passed:
                        passed.add(sequence.index)
                        yield sequence
                continue
            while (best := queue.first()) is not None:
                if not (yield best.item):
                    return
        for sequence in () if roots else view.waiting:
            outcome = yield sequence
            if not outcome and self._stop:
                return

    def on_arrival(self, sequence: SequenceView) -> None:
        """Queue the request at the node where its match ends."""
        self._place(sequence)

    def on_match(self, sequence: SequenceView) -> None:
        """Move to where the new match ends."""
        self._leave(sequence)
        self._place(sequence)

    def on_preempt(self, sequence: SequenceView) -> None:
        """Queue it again."""
        self._place(sequence)

    def on_admit(self, sequence: SequenceView, cached: int, extend: int) -> None:
        """Leave the node."""
        self._leave(sequence)

    def _place(self, sequence: SequenceView) -> None:
        node = sequence.match_node
        if node is not None:
            self._node_of[sequence.index] = node
            self._queues.setdefault(node, MatchQueue()).put(sequence)

    def _leave(self, sequence: SequenceView) -> None:
        node = self._node_of.pop(sequence.index, None)
        if node is None:
            return
        queue = self._queues[node]
        queue.discard(sequence)
        if not len(queue):
            del self._queues[node]

    def _postorder(self, roots: list[NodeView]) -> Iterator[MatchQueue]:
        stack = [(node, False) for node in _lightest_first(iter(roots))]
        while stack:
            node, descended = stack.pop()
            if descended:
                queue = self._queues.get(node)
                if queue is not None:
                    yield queue
            else:
                stack.append((node, True))
                stack += [(child, False) for child in _lightest_first(node.children())]


def _lightest_first(nodes: Iterator[NodeView]) -> list[NodeView]:
    """Nodes on the way to waiting sequences, for a stack: the heaviest and earliest is last."""
    return sorted(
        (node for node in nodes if node.num_waiting),
        key=lambda node: (-node.num_waiting, node.serial),
        reverse=True,
    )
