"""Eviction that heeds what requests ask for: a priority, a pinned prefix, a time to live.

Retained pages rank last but can leave: the scheduler counts every unlocked page as room, so a page
that could never leave would deadlock admission. A cap keeps the rest of the cache from starving.
"""

from __future__ import annotations

from heapq import heappop, heappush

from testbed.core.policy import EvictionPolicy
from testbed.core.views import NodeView, SchedulerView, SequenceView


class Priority(EvictionPolicy):
    """Lowest priority first, then least recently used; SGLang 0.5.23's `priority`.

    A node has the highest `priority` of the requests that passed; both halves of a split keep it.
    A prefix that one urgent request used stays urgent for ever.
    """

    def priority(self, node: NodeView, now: int) -> tuple[int, int]:
        """(highest priority that passed, step of the last use)."""
        return node.state, node.last_access

    def on_insert(self, node: NodeView, sequence: SequenceView) -> None:
        """The inserting request's priority."""
        node.state = sequence.priority

    def on_touch(self, node: NodeView, sequence: SequenceView) -> None:
        """Raise it."""
        node.state = max(node.state, sequence.priority)

    def on_split(self, upper: NodeView, lower: NodeView) -> None:
        """Keep it."""
        upper.state = lower.state


class _Capped(EvictionPolicy):
    """Counts the retained tokens against `max_share` of the pool."""

    def __init__(self, max_share: float) -> None:
        if not 0 <= max_share <= 1:
            raise ValueError(f"max_share={max_share}: a share of the pool from 0 to 1 is needed")
        self._max_share = max_share
        self._retained = 0
        """Tokens; those that left a node's tail count until the node is used again, or gone."""
        self._page_size = 1
        self._cap = 0

    def on_start(self, view: SchedulerView) -> None:
        """The pool is empty: all of it is free."""
        self._page_size = view.cache.page_size
        self._cap = int(self._max_share * view.cache.num_free_pages) * self._page_size

    def _fits(self, num_tokens: int) -> bool:
        return self._retained + num_tokens <= self._cap


class Pin(_Capped):
    """Keeps the first `pin` prompt tokens of requests that ask for it; LRU among the rest.

    Pinned pages leave only when nothing else can, least recently used first. A pin lasts until its
    page leaves. Once pins hold max_share of the pool, further ones are ignored: first come, first
    served, so that stale pins may keep newer ones out.

    The resident system prompt of engine guides and the cache_control of vendors' APIs, as one rule.
    """

    def __init__(self, max_share: float = 0.5) -> None:
        super().__init__(max_share)

    def priority(self, node: NodeView, now: int) -> tuple[int, int]:
        """(1 if the leaf's last page is pinned, step of the last use)."""
        return int(node.state >= node.end), node.last_access

    def tail_pages(self, node: NodeView) -> int | None:
        """What lies beyond the pinned depth is not pinned."""
        beyond = min(node.end - node.state, node.num_tokens)
        return beyond // self._page_size if beyond > 0 else None

    def on_insert(self, node: NodeView, sequence: SequenceView) -> None:
        """State: the depth up to which the path is pinned, at least where the edge begins."""
        node.state = node.end - node.num_tokens
        self._pin(node, sequence)

    def on_touch(self, node: NodeView, sequence: SequenceView) -> None:
        """Pin more of it, perhaps."""
        if node.state > node.end:
            self._retained -= node.state - node.end
            node.state = node.end
        self._pin(node, sequence)

    def on_split(self, upper: NodeView, lower: NodeView) -> None:
        """Each half keeps its part of the pin."""
        upper.state = min(lower.state, upper.end)
        lower.state = max(lower.state, upper.end)

    def on_evict(self, node: NodeView) -> None:
        """Its pin is gone."""
        self._retained -= node.state - (node.end - node.num_tokens)

    def _pin(self, node: NodeView, sequence: SequenceView) -> None:
        pages = -(-min(sequence.pin, sequence.num_prompt_tokens) // self._page_size)
        depth = min(pages * self._page_size, node.end)
        more = depth - node.state
        if more > 0 and self._fits(more):
            self._retained += more
            node.state = depth


class _Lease:
    """Until when a node is retained, and for how many tokens it counts (0: it is not)."""

    __slots__ = ("tokens", "until")

    def __init__(self, until: float = -1.0, tokens: int = 0) -> None:
        self.until = until
        self.tokens = tokens


class Ttl(_Capped):
    """Keeps the path of a request for a while after its end; LRU among what is not kept.

    A request's `retain_for` seconds count, or `seconds` if it names none. A later request that
    passes prolongs the lease. Kept pages leave only when nothing else can. Once leases hold
    max_share of the pool, a path is kept from its root as far as it fits.

    Five minutes are the default of Anthropic's prompt caching; Continuum (arXiv 2511.02230) keeps
    the prefix of a program while its tool call runs. Leases of programs that never return are
    wasted memory.
    """

    def __init__(self, seconds: float = 300.0, max_share: float = 0.5) -> None:
        super().__init__(max_share)
        if seconds < 0:
            raise ValueError(f"seconds={seconds}: at least 0 is needed")
        self._seconds = seconds
        self._next_entry = 0
        self._leases: list[tuple[float, int, NodeView]] = []
        self._lapsed: list[NodeView] = []
        self._view: SchedulerView

    def on_start(self, view: SchedulerView) -> None:
        """Keep the clock at hand."""
        super().on_start(view)
        self._view = view

    def priority(self, node: NodeView, now: int) -> tuple[int, int]:
        """(1 if kept, step of the last use)."""
        return int(node.state.tokens > 0), node.last_access

    def reranked(self) -> list[NodeView]:
        """Nodes whose lease ended since the last eviction."""
        self._expire()
        lapsed, self._lapsed = self._lapsed, []
        return lapsed

    def on_insert(self, node: NodeView, sequence: SequenceView) -> None:
        """Not kept yet: its request still runs and locks it."""
        node.state = _Lease()

    def on_release(self, node: NodeView, sequence: SequenceView) -> None:
        """Keep the path, from its root on."""
        self._expire()
        until = self._view.now + (sequence.retain_for or self._seconds)
        path: list[NodeView] = []
        passed: NodeView | None = node
        while passed is not None and passed.parent is not None:
            path.append(passed)
            passed = passed.parent
        for kept in reversed(path):
            lease: _Lease = kept.state
            more = kept.num_tokens - lease.tokens
            if not self._fits(more):
                break
            self._retained += more
            lease.tokens += more
            if until > lease.until:
                lease.until = until
                self._note(kept)

    def on_split(self, upper: NodeView, lower: NodeView) -> None:
        """Both halves keep the lease."""
        lease: _Lease = lower.state
        part = min(lease.tokens, upper.num_tokens)
        upper.state = _Lease(lease.until, part)
        lease.tokens -= part
        if part:
            self._note(upper)

    def on_evict(self, node: NodeView) -> None:
        """Its lease is void."""
        self._end(node.state)

    def _note(self, node: NodeView) -> None:
        heappush(self._leases, (node.state.until, self._next_entry, node))
        self._next_entry += 1

    def _expire(self) -> None:
        while self._leases and self._leases[0][0] <= self._view.now:
            _, _, node = heappop(self._leases)
            lease: _Lease = node.state
            # A lease that was prolonged has a later entry too; one that is void holds no tokens.
            if lease.tokens and lease.until <= self._view.now:
                self._end(lease)
                self._lapsed.append(node)

    def _end(self, lease: _Lease) -> None:
        self._retained -= lease.tokens
        lease.tokens = 0
