"""PrefixCache: what the scheduler asks of a cache. NoCache: the cache that never shares.

Every page is in exactly one place::

    pool = free + cached and unlocked (evictable) + cached and locked + owned by one sequence

A sequence's life against the cache, with what each verb leaves valid:

track     the sequence waits; num_matched_tokens stays current until untrack
untrack   it no longer waits; the match is valid until the next call that changes the cache
acquire   its cached prefix is locked and heads its page table; it stays until release
take      pages leave the pool for the caller, after evicting what is short
publish   its computed whole pages become the cache's; where the cache had equal tokens already,
          the page table adopts the cache's pages and the duplicates go back to the pool
release   the lock goes, and with it every page the cache does not own
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Protocol

import numpy as np

from testbed.core.page_pool import EMPTY_PAGES, PagePool, Pages
from testbed.core.request import Sequence, Tokens
from testbed.core.views import NodeView


class CacheListener(Protocol):
    """Who hears what happens inside a cache (the scheduler)."""

    def on_match(self, sequence: Sequence) -> None:
        """A tracked sequence's num_matched_tokens changed, or the node where its match ends."""

    def on_evict(self, pages: Pages) -> None:
        """These cached pages left to make room, in this order."""


class KvListener(Protocol):
    """Who hears what becomes and stops being shareable (the index that routers read).

    A run is what one publish adds: consecutive pages at the end of a prefix that is cached already.
    Runs are numbered, and lost from the tail only: children go before their parents.
    """

    def on_store(self, run: int, namespace: str, tokens: Tokens, start: int) -> None:
        """All of `tokens` (whole pages) is cached now; tokens[start:] is the new run."""

    def on_trim(self, run: int, end: int) -> None:
        """Only what lies before depth `end`, in tokens, is left of the run; it may be nothing."""


class InvariantError(Exception):
    """The cache's books do not balance: a bug in the core, never a user's mistake."""


class PrefixCache(ABC):
    """The contract of the module docstring. `step` is the logical clock of every recency."""

    page_size: int
    num_pages: int
    step: int = 0
    kv_listener: KvListener | None = None

    @property
    @abstractmethod
    def num_free_pages(self) -> int:
        """Pages that hold nothing."""

    @property
    @abstractmethod
    def num_evictable_pages(self) -> int:
        """Cached pages that no running sequence locks."""

    @property
    def num_available_pages(self) -> int:
        """Pages that take() can yield: free or evictable."""
        return self.num_free_pages + self.num_evictable_pages

    @property
    @abstractmethod
    def num_locked_pages(self) -> int:
        """Cached pages on the path of a running sequence."""

    @abstractmethod
    def peek(self, tokens: Tokens, namespace: str = "") -> int:
        """Leading tokens that are cached, in whole pages. Changes nothing."""

    @abstractmethod
    def evictable_leaves(self) -> Iterator[NodeView]:
        """The nodes that may be evicted now, in insertion order; nothing without a tree."""

    @abstractmethod
    def roots(self) -> Iterator[NodeView]:
        """The radix tree's roots, one a namespace; nothing without a tree."""

    @abstractmethod
    def track(self, sequence: Sequence) -> None:
        """Keep the waiting sequence's num_matched_tokens current."""

    @abstractmethod
    def untrack(self, sequence: Sequence) -> None:
        """Stop tracking."""

    @abstractmethod
    def touch_match(self, sequence: Sequence) -> None:
        """Refresh the recency of what a waiting sequence matches (SGLang's touch on peek)."""

    @abstractmethod
    def evictable_match_pages(self, sequence: Sequence, num_tokens: int) -> int:
        """Pages that are evictable now and that acquire(sequence, num_tokens) would lock."""

    @abstractmethod
    def acquire(self, sequence: Sequence, num_tokens: int) -> None:
        """Lock the first num_tokens (whole pages, at most the match) and enter their pages.

        The sequence's page table is allocated; pages, num_pages and num_tree_pages are set.
        """

    @abstractmethod
    def publish(self, sequence: Sequence, tokens: Tokens) -> None:
        """Make the whole pages of `tokens` shareable: what the sequence computed, from token 0."""

    @abstractmethod
    def release(self, sequence: Sequence) -> None:
        """Unlock what is the cache's and free what is the sequence's own."""

    @abstractmethod
    def pages_ahead(self, unnoticed: bool) -> int:
        """Pages that taken together are what taken one by one they would be; a lower bound.

        unnoticed: count only pages whose loss changes no tracked match.
        """

    @abstractmethod
    def check(self, running: Iterable[Sequence]) -> None:
        """Raise InvariantError unless the books balance; O(pool)."""

    @abstractmethod
    def take(self, count: int) -> Pages:
        """Take `count` pages, evicting what is short; at most free + evictable."""


def new_page_table(sequence: Sequence, page_size: int) -> Pages:
    """An empty table with room for everything whose KV the sequence may ever need."""
    tokens = sequence.num_prompt_tokens + sequence.request.max_new_tokens
    return np.empty(-(-tokens // page_size), dtype=np.int32)


def check_pages(num_pages: int, holdings: Iterable[Pages]) -> None:
    """Raise InvariantError unless the holdings together contain each page exactly once."""
    counts = np.bincount(np.concatenate(list(holdings)), minlength=num_pages)
    expected = np.arange(len(counts)) < num_pages
    wrong = np.flatnonzero(counts != expected)[:5]
    if len(wrong):
        raise InvariantError(
            f"pages {wrong.tolist()} are in {counts[wrong].tolist()} places, "
            f"not in one (the pool has {num_pages})"
        )


def owned_pages(sequence: Sequence) -> Pages:
    """The pages that belong to the sequence alone."""
    return sequence.pages[sequence.num_tree_pages : sequence.num_pages]


class NoCache(PrefixCache):
    """Nothing is ever shared: the baseline, and the "no cache" arm of RadixAttention's ablation."""

    def __init__(self, pool: PagePool, page_size: int) -> None:
        self.pool = pool
        self.page_size = page_size
        self.num_pages = pool.num_pages

    @property
    def num_free_pages(self) -> int:
        """Pages that hold nothing."""
        return self.pool.num_free

    @property
    def num_evictable_pages(self) -> int:
        """None."""
        return 0

    @property
    def num_locked_pages(self) -> int:
        """None."""
        return 0

    def peek(self, tokens: Tokens, namespace: str = "") -> int:
        """Nothing is cached."""
        return 0

    def evictable_leaves(self) -> Iterator[NodeView]:
        """Nothing."""
        return iter(())

    def roots(self) -> Iterator[NodeView]:
        """Nothing."""
        return iter(())

    def track(self, sequence: Sequence) -> None:
        """The match is 0 and stays 0."""

    def untrack(self, sequence: Sequence) -> None:
        """Nothing to stop."""

    def touch_match(self, sequence: Sequence) -> None:
        """Nothing is matched."""

    def evictable_match_pages(self, sequence: Sequence, num_tokens: int) -> int:
        """None."""
        return 0

    def acquire(self, sequence: Sequence, num_tokens: int) -> None:
        """Start an empty page table."""
        sequence.pages = new_page_table(sequence, self.page_size)

    def take(self, count: int) -> Pages:
        """Take `count` free pages."""
        return self.pool.allocate(count)

    def publish(self, sequence: Sequence, tokens: Tokens) -> None:
        """The pages stay the sequence's own."""

    def release(self, sequence: Sequence) -> None:
        """Free every page of the sequence."""
        self.pool.free(owned_pages(sequence))
        sequence.pages = EMPTY_PAGES
        sequence.num_pages = 0

    def pages_ahead(self, unnoticed: bool) -> int:
        """Every free page: no match ever changes."""
        return self.pool.num_free

    def check(self, running: Iterable[Sequence]) -> None:
        """Raise InvariantError unless each page is free or one sequence's."""
        owned = [owned_pages(sequence) for sequence in running]
        check_pages(self.pool.num_pages, [self.pool.free_pages(), *owned])
