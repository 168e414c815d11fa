"""Eviction that knows the future."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from testbed.core.policy import EvictionPolicy
from testbed.core.token_tree import TokenTree, TreeNode
from testbed.core.views import NodeView, RequestView, SchedulerView, SequenceView


class _Ahead(NamedTuple):
    """Where a cached path lies in the tree of future prompts: the last node that it reaches, None
    if it leaves the tree at its root, and the depth up to which they agree."""

    node: TreeNode | None
    depth: int


class Belady(EvictionPolicy):
    """Page whose next lookup lies furthest ahead first (Belady 1966); an oracle, simulation only.

    The place of a request in arrival order stands for time. A page that some request computes anew
    before the next one looks it up counts as never used again: with min_computed_tokens = 1, as the
    scheduler has it, a prompt's last token is never looked up. Ties: least recently used.

    Page by page, with whole prompts cached (min_computed_tokens = 0) and requests served one at a
    time in arrival order, no rule hits more tokens: a request's own pages have to stay while it is
    served. Otherwise it is a heuristic: the page that holds a computed last token takes room beside
    the cached one for a moment, other orders are not foreseen, generated tokens are known only as
    parts of later prompts, whole-node eviction has no such simple optimum, and with several
    replicas a request that went elsewhere counts until a later one has started here.

    Building takes O(prompt tokens) time and memory for every distinct prefix token.
    """

    oracle = True

    def __init__(self, min_computed_tokens: int = 1) -> None:
        if min_computed_tokens not in (0, 1):
            raise ValueError(f"min_computed_tokens={min_computed_tokens}: 0 or 1 is needed")
        self._min_computed_tokens = min_computed_tokens
        self._requests: Sequence[RequestView] | None = None
        self._places: dict[int, int] = {}
        self._started = bytearray()
        self._newest = -1
        self._tree = TokenTree()

    def on_future(self, requests: Sequence[RequestView]) -> None:
        """Every request of the run, in arrival order."""
        self._requests = requests

    def on_start(self, view: SchedulerView) -> None:
        """Build the tree of prompts; ValueError if nobody told the future."""
        if self._requests is None:
            raise ValueError("Belady knows its victims only where the future is known: simulate")
        size = view.cache.page_size
        self._tree = tree = TokenTree(size)
        self._places = {request.id: place for place, request in enumerate(self._requests)}
        self._started = bytearray(len(self._requests))
        usable: list[int] = []
        for request in self._requests:
            usable.append((request.num_prompt_tokens - self._min_computed_tokens) // size * size)
            tree.insert(request.prompt[: usable[-1]], request.namespace)
            tree.insert(request.prompt, request.namespace)
        # Latest first, so that what is past is popped. A negative place computes and looks up not.
        for place in range(len(self._requests) - 1, -1, -1):
            request = self._requests[place]
            for node, _ in tree.match(request.prompt, request.namespace):
                if node.state is None:
                    node.state = []
                node.state.append(place if node.end <= usable[place] else ~place)
        self._requests = None

    def priority(self, node: NodeView, now: int) -> tuple[int, int]:
        """(place of the last page's next lookup, negated; step of the last use)."""
        return -self._next_lookup(node), node.last_access

    def tail_pages(self, node: NodeView) -> int | None:
        """Pages of one node of the future tree, or beyond it, are looked up together."""
        ahead: _Ahead = node.state
        start = node.end - node.num_tokens
        if node.end <= ahead.depth:
            run = node.end - max(start, _climb(ahead.node, node.end).start)
        else:
            run = node.end - max(start, ahead.depth)
        return run // self._tree.page_size

    def on_insert(self, node: NodeView, sequence: SequenceView) -> None:
        """Find it in the future."""
        self._start(sequence)
        parent = node.parent
        assert parent is not None
        if parent.parent is None:
            path = self._tree.match(node.tokens, sequence.namespace)
            node.state = _Ahead(*path[-1]) if path else _Ahead(None, 0)
        elif parent.state.depth >= parent.end:
            reached = _climb(parent.state.node, parent.end)
            node.state = self._follow(reached, parent.end, node.tokens)
        else:
            node.state = parent.state

    def on_touch(self, node: NodeView, sequence: SequenceView) -> None:
        """The request looked it up."""
        self._start(sequence)

    def on_split(self, upper: NodeView, lower: NodeView) -> None:
        """The upper half ends higher up."""
        node, depth = lower.state
        if depth > upper.end:
            node, depth = _climb(node, upper.end), upper.end
        upper.state = _Ahead(node, depth)

    def _start(self, sequence: SequenceView) -> None:
        place = self._places.get(sequence.id)
        if place is None:
            raise ValueError(f"request {sequence.id}: Belady knows only what on_future foretold")
        self._started[place] = 1
        self._newest = max(self._newest, place)

    def _next_lookup(self, node: NodeView) -> int:
        """Place of the next lookup of the leaf's last page; the number of requests for never."""
        never = len(self._started)
        ahead: _Ahead = node.state
        if node.end > ahead.depth:
            return never
        places: list[int] = _climb(ahead.node, node.end).state
        while places:
            place = places[-1] if places[-1] >= 0 else ~places[-1]
            went_elsewhere = place < self._newest and not node.num_waiting
            if not self._started[place] and not went_elsewhere:
                return place if places[-1] >= 0 else never
            places.pop()
        return never

    def _follow(self, node: TreeNode, depth: int, tokens: Any) -> _Ahead:
        """Go on along `tokens` from a depth inside the node or at its end, as far as they agree."""
        size = self._tree.page_size
        done = 0
        while done < len(tokens):
            if depth == node.end:
                child = node.children.get(tokens[done : done + size].tobytes())
                if child is None:
                    break
                node = child
            edge = node.tokens[depth - node.start :]
            rest = tokens[done : done + len(edge)]
            differs = edge[: len(rest)] != rest
            same = int(differs.argmax()) if differs.any() else len(rest)
            same -= same % size
            depth += same
            done += same
            if depth < node.end:
                break
        return _Ahead(node, depth)


def _climb(node: TreeNode | None, depth: int) -> TreeNode:
    """The ancestor, or the node itself, whose edge holds the last token before `depth`."""
    assert node is not None
    while node.start >= depth:
        assert node.parent is not None
        node = node.parent
    return node
