"""BlockHashCache: hashed blocks and one free queue, as vLLM keeps them (v1 KVCacheManager).

A full block's identity is a chained 128-bit digest of its tokens and everything before them. There
is no tree: blocks that no sequence refers to wait in a queue, cached or not, and an allocation
takes its head. A finished sequence queues its last block first, so prefixes outlive their tails.
A block that was computed twice is kept twice.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from hashlib import blake2b

import numpy as np

from testbed.core.page_pool import EMPTY_PAGES, Pages
from testbed.core.prefix_cache import (
    CacheListener,
    InvariantError,
    PrefixCache,
    check_pages,
    new_page_table,
    owned_pages,
)
from testbed.core.request import Sequence, Tokens
from testbed.core.views import NodeView


class BlockHashCache(PrefixCache):
    """vLLM-style prefix caching; its eviction order (the queue) is part of the design."""

    def __init__(self, num_pages: int, page_size: int, listener: CacheListener) -> None:
        self.num_pages = num_pages
        self.page_size = page_size
        self._listener = listener
        self._num_used = 0
        # Every id below _num_used that no sequence refers to, in the order they will be taken.
        self._queue: OrderedDict[int, None] = OrderedDict()
        self._digest_of: dict[int, bytes] = {}
        self._references: dict[int, int] = {}
        self._blocks: dict[bytes, dict[int, None]] = {}
        self._num_evictable = 0
        # Waiting sequences by every digest of their prompt, with the digest's place in the chain.
        self._waiters: dict[bytes, tuple[int, dict[Sequence, None]]] = {}
        # For a kv_listener: the run of every digest, with the digest's place in the chain.
        self._run_of: dict[bytes, tuple[int, int]] = {}
        self._next_run = 1

    @property
    def num_free_pages(self) -> int:
        """Blocks without a digest that nobody refers to."""
        return self.num_pages - self._num_used + len(self._queue) - self._num_evictable

    @property
    def num_evictable_pages(self) -> int:
        """Blocks with a digest that nobody refers to."""
        return self._num_evictable

    @property
    def num_locked_pages(self) -> int:
        """Blocks with a digest that some sequence refers to."""
        return len(self._digest_of) - self._num_evictable

    def peek(self, tokens: Tokens, namespace: str = "") -> int:
        """Leading tokens that are cached, in whole blocks. Changes nothing."""
        return self._run(self._digests(tokens, namespace), 0) * self.page_size

    def evictable_leaves(self) -> Iterator[NodeView]:
        """Nothing: there is no tree."""
        return iter(())

    def roots(self) -> Iterator[NodeView]:
        """Nothing: there is no tree."""
        return iter(())

    def track(self, sequence: Sequence) -> None:
        """Hash the prompt once and register it under each of its digests."""
        digests = self._digests(sequence.tokens, sequence.request.namespace)
        sequence.match_handle = digests
        sequence.num_matched_tokens = self._run(digests, 0) * self.page_size
        for place, digest in enumerate(digests):
            self._waiters.setdefault(digest, (place, {}))[1][sequence] = None

    def untrack(self, sequence: Sequence) -> None:
        """Forget the sequence; its match fields keep their last values."""
        for digest in sequence.match_handle:
            sequences = self._waiters[digest][1]
            del sequences[sequence]
            if not sequences:
                del self._waiters[digest]

    def touch_match(self, sequence: Sequence) -> None:
        """Move what the waiting sequence matches to the end of the queue, last block first."""
        matched = sequence.num_matched_tokens // self.page_size
        for digest in reversed(sequence.match_handle[:matched]):
            block = next(iter(self._blocks[digest]))
            if not self._references[block]:
                self._queue.move_to_end(block)

    def evictable_match_pages(self, sequence: Sequence, num_tokens: int) -> int:
        """Blocks that are evictable now and that acquire(sequence, num_tokens) would refer to."""
        digests = sequence.match_handle[: num_tokens // self.page_size]
        return sum(not self._references[next(iter(self._blocks[d]))] for d in digests)

    def acquire(self, sequence: Sequence, num_tokens: int) -> None:
        """Refer to the first num_tokens of the match."""
        sequence.cache_handle = sequence.match_handle
        sequence.pages = new_page_table(sequence, self.page_size)
        sequence.num_pages = sequence.num_tree_pages = num_tokens // self.page_size
        for place, digest in enumerate(sequence.match_handle[: sequence.num_pages]):
            block = next(iter(self._blocks[digest]))
            if not self._references[block]:
                del self._queue[block]
                self._num_evictable -= 1
            self._references[block] += 1
            sequence.pages[place] = block

    def take(self, count: int) -> Pages:
        """Take blocks never used, then the head of the queue; digests of taken blocks are lost."""
        pages = np.empty(count, dtype=np.int32)
        fresh = min(count, self.num_pages - self._num_used)
        pages[:fresh] = np.arange(self._num_used, self._num_used + fresh)
        self._num_used += fresh
        evicted = []
        for place in range(fresh, count):
            block, _ = self._queue.popitem(last=False)
            pages[place] = block
            if block in self._digest_of:
                self._forget(block)
                evicted.append(block)
        if evicted:
            self._listener.on_evict(np.array(evicted, dtype=np.int32))
        return pages

    def publish(self, sequence: Sequence, tokens: Tokens) -> None:
        """Give the sequence's newly computed whole blocks their digests."""
        digests: list[bytes] = sequence.cache_handle
        full = len(tokens) // self.page_size
        if full > len(digests):
            digests = self._digests(tokens, sequence.request.namespace)
            sequence.cache_handle = digests
        if self.kv_listener is not None:
            self._announce(sequence, tokens, digests[:full])
        for place in range(sequence.num_tree_pages, full):
            block, digest = int(sequence.pages[place]), digests[place]
            self._digest_of[block] = digest
            self._references[block] = 1
            self._blocks.setdefault(digest, {})[block] = None
        new = digests[sequence.num_tree_pages : full]
        sequence.num_tree_pages = max(sequence.num_tree_pages, full)
        for digest in new:
            self._lengthen(digest)

    def release(self, sequence: Sequence) -> None:
        """Queue the blocks that nobody else refers to, last block first."""
        for place in reversed(range(sequence.num_pages)):
            block = int(sequence.pages[place])
            if place < sequence.num_tree_pages:
                self._references[block] -= 1
                if self._references[block]:
                    continue
                self._num_evictable += 1
            self._queue[block] = None
        sequence.cache_handle = None
        sequence.pages = EMPTY_PAGES
        sequence.num_pages = sequence.num_tree_pages = 0

    def pages_ahead(self, unnoticed: bool) -> int:
        """Blocks that were never used."""
        return self.num_pages - self._num_used

    def check(self, running: Iterable[Sequence]) -> None:
        """Raise InvariantError unless blocks and references add up; O(pool)."""
        sequences = list(running)
        queued = [b for b in self._queue if b not in self._digest_of]
        free = np.arange(self._num_used, self.num_pages, dtype=np.int32)
        holdings = [
            np.array(queued, dtype=np.int32),
            np.array(list(self._digest_of), dtype=np.int32),
        ]
        check_pages(self.num_pages, [free, *holdings, *(owned_pages(s) for s in sequences)])
        references = dict.fromkeys(self._digest_of, 0)
        for sequence in sequences:
            for block in sequence.pages[: sequence.num_tree_pages].tolist():
                references[block] += 1
        if references != self._references:
            raise InvariantError("reference counts are not the running sequences' blocks")
        idle = sum(not count for count in references.values())
        if idle != self._num_evictable or any(
            b not in self._queue for b, n in references.items() if not n
        ):
            raise InvariantError(
                f"{idle} cached blocks are idle, {self._num_evictable} are counted"
            )

    def _digests(self, tokens: Tokens, namespace: str) -> list[bytes]:
        size = 4 * self.page_size
        data = tokens.tobytes()
        digest = blake2b(namespace.encode(), digest_size=16).digest()
        digests = []
        for start in range(0, len(data) - size + 1, size):
            digest = blake2b(digest + data[start : start + size], digest_size=16).digest()
            digests.append(digest)
        return digests

    def _run(self, digests: list[bytes], place: int) -> int:
        """Where the run of cached blocks that is known to reach `place` ends."""
        while place < len(digests) and digests[place] in self._blocks:
            place += 1
        return place

    def _announce(self, sequence: Sequence, tokens: Tokens, digests: list[bytes]) -> None:
        """Tell the listener of a run: the digests that no block has yet, which end the chain."""
        assert self.kv_listener is not None
        start = self._run(digests, sequence.num_tree_pages)
        if start == len(digests):
            return
        for place in range(start, len(digests)):
            self._run_of[digests[place]] = self._next_run, place
        size, namespace = self.page_size, sequence.request.namespace
        self.kv_listener.on_store(
            self._next_run, namespace, tokens[: len(digests) * size], start * size
        )
        self._next_run += 1

    def _lengthen(self, digest: bytes) -> None:
        place, sequences = self._waiters.get(digest, (0, {}))
        for sequence in sequences:
            if sequence.num_matched_tokens == place * self.page_size:
                run = self._run(sequence.match_handle, place)
                sequence.num_matched_tokens = run * self.page_size
                self._listener.on_match(sequence)

    def _forget(self, block: int) -> None:
        digest = self._digest_of.pop(block)
        del self._references[block]
        self._num_evictable -= 1
        same = self._blocks[digest]
        del same[block]
        if same:
            return
        del self._blocks[digest]
        if self.kv_listener is not None:
            run, first_lost = self._run_of.pop(digest)
            self.kv_listener.on_trim(run, first_lost * self.page_size)
        place, sequences = self._waiters.get(digest, (0, {}))
        for sequence in sequences:
            if sequence.num_matched_tokens > place * self.page_size:
                sequence.num_matched_tokens = place * self.page_size
                self._listener.on_match(sequence)
