"""RadixCache: the radix tree over the page pool."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Literal

import numpy as np

from testbed.core.eviction_index import EvictionIndex
from testbed.core.match_tracker import MatchTracker
from testbed.core.page_pool import EMPTY_PAGES, PagePool, Pages
from testbed.core.policy import EvictionPolicy, PolicyError
from testbed.core.prefix_cache import (
    CacheListener,
    InvariantError,
    PrefixCache,
    check_pages,
    new_page_table,
    owned_pages,
)
from testbed.core.radix_tree import Node, RadixTree
from testbed.core.request import Sequence, Tokens
from testbed.core.views import CacheView, NodeView


class RadixCache(PrefixCache):
    """The radix tree, its eviction order and the waiting sequences' matches over one page pool.

    granularity `page` evicts exactly what is short from the tail of leaves; `node` evicts whole
    leaves, as SGLang does. split_touch `sglang` also refreshes the unmatched lower half of a node
    that is split (SGLang 0.5.23 touches a child before it splits it).
    """

    def __init__(
        self,
        pool: PagePool,
        page_size: int,
        eviction: EvictionPolicy,
        listener: CacheListener,
        granularity: Literal["page", "node"] = "page",
        split_touch: Literal["ideal", "sglang"] = "ideal",
    ) -> None:
        self.pool = pool
        self.page_size = page_size
        self.num_pages = pool.num_pages
        self._listener = listener
        self.tree = RadixTree(page_size)
        self._eviction = eviction
        self._index = EvictionIndex()
        self._tracker = MatchTracker(self.tree, listener.on_match)
        self._by_page = granularity == "page"
        self._touch_lower = split_touch == "sglang"
        self._view = CacheView(self)
        kind = type(eviction)
        self._names_victims = kind.victims is not EvictionPolicy.victims
        self._reranks = kind.reranked is not EvictionPolicy.reranked
        self._ranks_tails = kind.tail_pages is not EvictionPolicy.tail_pages
        self._hears_inserts = kind.on_insert is not EvictionPolicy.on_insert
        self._hears_touches = kind.on_touch is not EvictionPolicy.on_touch
        self._hears_releases = kind.on_release is not EvictionPolicy.on_release

    @property
    def num_free_pages(self) -> int:
        """Pages that hold nothing."""
        return self.pool.num_free

    @property
    def num_evictable_pages(self) -> int:
        """Cached pages that no running sequence locks."""
        return self.tree.num_pages - self.tree.num_locked_pages

    @property
    def num_locked_pages(self) -> int:
        """Cached pages on the path of a running sequence."""
        return self.tree.num_locked_pages

    def peek(self, tokens: Tokens, namespace: str = "") -> int:
        """Leading tokens that are cached, in whole pages. Changes nothing."""
        return self.tree.match(tokens, namespace)[1] if self.tree.knows(namespace) else 0

    def evictable_leaves(self) -> Iterator[NodeView]:
        """The nodes that may be evicted now, in insertion order; O(nodes)."""
        leaves = [node for node in self.tree.nodes() if node.evictable]
        return (node.view for node in sorted(leaves, key=lambda node: node.serial))

    def roots(self) -> Iterator[NodeView]:
        """The tree's roots, one a namespace."""
        return (root.view for root in self.tree.roots())

    def track(self, sequence: Sequence) -> None:
        """Keep the waiting sequence's num_matched_tokens current."""
        self._tracker.track(sequence)

    def untrack(self, sequence: Sequence) -> None:
        """Stop tracking."""
        self._tracker.untrack(sequence)

    def touch_match(self, sequence: Sequence) -> None:
        """Refresh the recency of the path the waiting sequence matches."""
        self._refresh(sequence.match_handle)

    def evictable_match_pages(self, sequence: Sequence, num_tokens: int) -> int:
        """Pages that are evictable now and that acquire(sequence, num_tokens) would lock."""
        node: Node = sequence.match_handle
        count = 0
        # Locks cover whole paths, so the first locked ancestor ends the unlocked part.
        while node.parent is not None and not node.locks:
            count += max(0, min(node.end, num_tokens) - node.start)
            node = node.parent
        return count // self.page_size

    def acquire(self, sequence: Sequence, num_tokens: int) -> None:
        """Lock the first num_tokens of the match, splitting the edge they end in."""
        node: Node = sequence.match_handle
        while node.parent is not None and node.start >= num_tokens:
            node = node.parent
        if num_tokens < node.end:
            lower, node = node, self._split(node, num_tokens)
            if self._touch_lower:
                self._refresh_node(lower)
        self.tree.lock(node)
        sequence.cache_handle = node
        sequence.pages = new_page_table(sequence, self.page_size)
        sequence.num_pages = sequence.num_tree_pages = num_tokens // self.page_size
        for passed in node.path():
            end = passed.end // self.page_size
            sequence.pages[end - len(passed.pages) : end] = passed.pages
            passed.last_access = self.step
            passed.hits += 1
            if self._hears_touches:
                self._eviction.on_touch(passed.view, sequence.view)

    def publish(self, sequence: Sequence, tokens: Tokens) -> None:
        """Insert the whole pages of `tokens` below the sequence's locked node and lock them too."""
        anchor: Node = sequence.cache_handle
        size = self.page_size
        limit = len(tokens) - len(tokens) % size
        node, depth = anchor, anchor.end
        passed: list[Node] = []
        while depth < limit:
            child = node.children.get(tokens[depth : depth + size].tobytes())
            if child is None:
                break
            end = self.tree.extend_match(child, tokens[:limit], depth)
            node = child
            if end < child.end:
                node = self._split(child, end)
                if self._touch_lower:
                    self._refresh_node(child)
            self._adopt(sequence, node)
            passed.append(node)
            depth = end
        if depth < limit:
            pages = sequence.pages[depth // size : limit // size]
            node = self.tree.add_leaf(node, tokens[depth:limit], pages)
            node.created = self.step
            node.hits = 1
            if self._hears_inserts:
                self._eviction.on_insert(node.view, sequence.view)
            if self.kv_listener is not None:
                namespace = sequence.request.namespace
                self.kv_listener.on_store(node.serial, namespace, tokens[:limit], depth)
        self.tree.lock(node, above=anchor)
        sequence.cache_handle = node
        sequence.num_tree_pages = max(sequence.num_tree_pages, limit // size)
        for shared in passed:
            shared.hits += 1
            if self._hears_touches:
                self._eviction.on_touch(shared.view, sequence.view)
        upper: Node | None = node
        while upper is not None:
            upper.last_access = self.step
            upper = upper.parent
        if depth < limit and anchor.num_waiting:
            self._tracker.on_leaf(node)

    def take(self, count: int) -> Pages:
        """Take `count` pages, evicting what is short; at most free + evictable."""
        short = count - self.pool.num_free
        if short <= 0:
            return self.pool.allocate(count)
        # Evicted pages go straight to the taker, so that taking twice equals taking once.
        taken = self._evict(short)
        if short == count and len(taken) == 1:
            pages = taken[0]
        else:
            pages = np.concatenate((self.pool.allocate(count - short), *taken))
        if len(pages) > count:
            self.pool.free(pages[: count - 1 : -1])
        return pages[:count]

    def release(self, sequence: Sequence) -> None:
        """Unlock the sequence's path and free the pages that are its own."""
        node: Node = sequence.cache_handle
        self.tree.unlock(node)
        if self._hears_releases:
            self._eviction.on_release(node.view, sequence.view)
        if node.evictable:
            self._enter(node)
        self.pool.free(owned_pages(sequence))
        sequence.cache_handle = None
        sequence.pages = EMPTY_PAGES
        sequence.num_pages = sequence.num_tree_pages = 0

    def pages_ahead(self, unnoticed: bool) -> int:
        """Free pages, and what can be evicted page by page: all of it, or the next victim alone if
        no waiting match may change."""
        free = self.pool.num_free
        if not self._by_page or self._names_victims or self._reranks:
            return free
        if not unnoticed:
            return free + self.num_evictable_pages
        victim = self._index.first()
        if victim is None or victim.waiters or victim.partial_waiters:
            return free
        return free + self._tail_pages(victim)

    def check(self, running: Iterable[Sequence]) -> None:
        """Raise InvariantError unless pages, locks and sizes add up; O(pool + tree)."""
        sequences = list(running)
        nodes = list(self.tree.nodes())
        cached = [node.pages for node in nodes]
        owned = [owned_pages(sequence) for sequence in sequences]
        check_pages(self.pool.num_pages, [self.pool.free_pages(), *cached, *owned])
        locks = Counter(node for s in sequences for node in s.cache_handle.path())
        for node in nodes:
            if node.locks != locks[node]:
                raise InvariantError(f"{node.view!r}: {locks[node]} running sequences pass")
            if len(node.pages) * self.page_size != len(node.tokens):
                raise InvariantError(f"{node.view!r}: {len(node.pages)} pages")
        totals = (sum(len(n.pages) for n in nodes), sum(len(n.pages) for n in nodes if n.locks))
        if totals != (self.tree.num_pages, self.tree.num_locked_pages):
            raise InvariantError(f"(cached, locked) pages {totals} are not the tree's counts")

    def _split(self, node: Node, depth: int) -> Node:
        upper = self.tree.split(node, depth)
        self._tracker.on_split(upper, node)
        self._eviction.on_split(upper.view, node.view)
        if node.evictable:
            self._enter(node)
        return upper

    def _adopt(self, sequence: Sequence, node: Node) -> None:
        """Enter the tree's pages of `node` in the page table and free the sequence's duplicates."""
        end = node.end // self.page_size
        table = sequence.pages[end - len(node.pages) : end]
        duplicates = table.copy()
        table[:] = node.pages
        self.pool.free(duplicates)

    def _refresh(self, node: Node) -> None:
        for passed in node.path():
            self._refresh_node(passed)

    def _refresh_node(self, node: Node) -> None:
        node.last_access = self.step
        if node.evictable:
            self._enter(node)

    def _enter(self, leaf: Node) -> None:
        priority = self._eviction.priority(leaf.view, self.step)
        # NaN alone, whose order is no order, differs from itself.
        if priority != priority:
            name = type(self._eviction).__name__
            raise PolicyError(f"{name}.priority: {priority!r} of {leaf.view!r} cannot be ranked")
        self._index.enter(leaf, priority)
        self._index.compact(self.tree.num_nodes)

    def _evict(self, need: int) -> list[Pages]:
        """Take at least `need` pages from evictable leaves, in the order in which they left."""
        evicted: list[Pages] = []
        if self._reranks:
            for view in self._eviction.reranked():
                if not isinstance(view, NodeView):
                    name = type(self._eviction).__name__
                    raise PolicyError(f"{name}.reranked: {view!r} is no node of the cache")
                if view._node.evictable:
                    self._enter(view._node)
        named: Iterator[NodeView] | None = None
        if self._names_victims:
            named = iter(self._eviction.victims(self._view, need) or ())
        while need > 0:
            leaf = self._index.first() if named is None else self._named_victim(named, need)
            if leaf is None:
                raise InvariantError(f"{need} pages are short and nothing is evictable")
            held = len(leaf.pages)
            count = min(need, self._tail_pages(leaf)) if self._by_page else held
            if count < held:
                pages = self.tree.truncate(leaf, count)[::-1].copy()
                if leaf.num_waiting:
                    self._tracker.on_truncate(leaf)
                if self.kv_listener is not None:
                    self.kv_listener.on_trim(leaf.serial, leaf.end)
                if self._ranks_tails:
                    self._enter(leaf)
            else:
                pages = self._evict_leaf(leaf)[::-1].copy()
            need -= count
            self._listener.on_evict(pages)
            evicted.append(pages)
        return evicted

    def _tail_pages(self, leaf: Node) -> int:
        """How many pages at the leaf's end share its rank."""
        held = len(leaf.pages)
        count = self._eviction.tail_pages(leaf.view) if self._ranks_tails else held
        if count is None:
            return held
        if not 0 < count <= held:
            name = type(self._eviction).__name__
            raise PolicyError(f"{name}.tail_pages: {count}; 1 to {held} pages of {leaf.view!r}")
        return count

    def _named_victim(self, victims: Iterator[NodeView], need: int) -> Node:
        name = type(self._eviction).__name__
        view = next(victims, None)
        if view is None:
            raise PolicyError(f"{name}.victims: it ended while {need} pages are short")
        if not isinstance(view, NodeView) or not view._node.evictable:
            raise PolicyError(f"{name}.victims: {view!r} is no evictable leaf")
        return view._node

    def _evict_leaf(self, leaf: Node) -> Pages:
        parent = leaf.parent
        assert parent is not None
        self._eviction.on_evict(leaf.view)
        pages = self.tree.remove(leaf)
        if leaf.num_waiting:
            self._tracker.on_remove(leaf, parent)
        if self.kv_listener is not None:
            self.kv_listener.on_trim(leaf.serial, leaf.start)
        if parent.evictable:
            self._enter(parent)
        return pages
