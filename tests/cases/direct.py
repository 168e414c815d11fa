"""Serving straight on a RadixCache, one token a block, where a case counts other things than a
scheduler does: segments, or blocks of which the last may be partial."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from testbed.core.page_pool import PagePool, Pages
from testbed.core.radix_cache import RadixCache
from testbed.core.request import Request, Sequence
from testbed.policies.eviction.recency import Lru


class EvictionCount:
    """A cache listener that counts the blocks that left."""

    def __init__(self) -> None:
        self.blocks = 0

    def on_match(self, sequence: Sequence) -> None:
        """Nobody waits here."""

    def on_evict(self, pages: Pages) -> None:
        """Count them."""
        self.blocks += len(pages)


def build_cache(capacity: int, listener: EvictionCount, by_node: bool = False) -> RadixCache:
    """An LRU cache of `capacity` blocks that evicts block by block, or node by node."""
    granularity: Literal["page", "node"] = "node" if by_node else "page"
    return RadixCache(PagePool(capacity), 1, Lru(), listener, granularity)


def serve(cache: RadixCache, request: Request, ends: Iterable[int]) -> int:
    """Serve one request to its end; returns how many leading blocks were cached.

    Its missing blocks enter in pieces that end at `ends`, a node each if they are new.
    """
    sequence = Sequence(request, request.id)
    cache.step += 1
    cache.track(sequence)
    cache.untrack(sequence)
    hit, length = sequence.num_matched_tokens, len(request.prompt)
    cache.acquire(sequence, hit)
    sequence.pages[hit:length] = cache.take(length - hit)
    sequence.num_pages = length
    for end in ends:
        cache.publish(sequence, request.prompt[:end])
    cache.release(sequence)
    return hit
