"""Small parts that the tests of core, policies and sim build their cases from."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import numpy as np

from testbed.core.page_pool import PagePool, Pages
from testbed.core.policy import EvictionPolicy
from testbed.core.prefix_cache import PrefixCache, owned_pages
from testbed.core.radix_cache import RadixCache
from testbed.core.request import Request, Sequence, State, Tokens
from testbed.core.views import NodeView, SequenceView
from testbed.policies.eviction.recency import Lru


class Mru(EvictionPolicy):
    """Most recently used first: its keys become more urgent with use."""

    def priority(self, node: NodeView, now: int) -> int:
        return -node.last_access


def tokens_of(values: Iterable[int]) -> Tokens:
    return np.fromiter(values, dtype=np.int32)


def make_request(
    id: int, prompt: Iterable[int], output: int | Iterable[int] = 1, **fields: Any
) -> Request:
    """A request whose output is given, or has so many tokens that occur in no prompt."""
    if isinstance(output, int):
        output = range(-1 - 1000 * id, -1 - 1000 * id - output, -1)
    return Request(id, tokens_of(prompt), tokens_of(output), **fields)


class Listener:
    """Notes what a cache reports."""

    def __init__(self) -> None:
        self.matches: list[tuple[int, int]] = []
        """(request id, num_matched_tokens) at each change."""
        self.evicted: list[int] = []

    def on_match(self, sequence: Sequence) -> None:
        self.matches.append((sequence.request.id, sequence.num_matched_tokens))

    def on_evict(self, pages: Pages) -> None:
        self.evicted += pages.tolist()


class CacheDriver:
    """Plays the scheduler's part against a cache, and keeps what each page's KV was computed for.

    `written` maps a page to (namespace, all tokens up to the page's end): whoever finds the page in
    the tree or in a page table must stand for exactly those tokens.
    """

    def __init__(self, cache: PrefixCache) -> None:
        self.cache = cache
        self.running: dict[Sequence, None] = {}
        self.waiting: dict[Sequence, None] = {}
        self.computed: dict[Sequence, int] = {}
        """Tokens of each running sequence whose KV exists."""
        self.produced: dict[Sequence, int] = {}
        """Output tokens of each running sequence."""
        self.written: dict[int, tuple[str, tuple[int, ...]]] = {}
        self._next_index = 0

    def tick(self) -> None:
        self.cache.step += 1

    def wait(
        self, prompt: Iterable[int], output: int | Iterable[int] = 1, namespace: str = ""
    ) -> Sequence:
        request = make_request(self._next_index, prompt, output, namespace=namespace)
        sequence = Sequence(request, self._next_index)
        sequence.view = SequenceView(sequence)
        self._next_index += 1
        self.waiting[sequence] = None
        self.cache.track(sequence)
        return sequence

    def shortage(self, sequence: Sequence) -> int:
        """Pages by which the sequence's prompt does not fit; 0 or less if it does."""
        cached = self._usable(sequence)
        held_back = self.cache.evictable_match_pages(sequence, cached)
        room = self.cache.num_free_pages + self.cache.num_evictable_pages - held_back
        return -(-len(sequence.tokens) // self.cache.page_size) - self._pages(cached) - room

    def admit(self, sequence: Sequence) -> int:
        """Acquire what is cached, take pages for the rest; returns the cached tokens."""
        cached = self._usable(sequence)
        del self.waiting[sequence]
        self.cache.untrack(sequence)
        self.cache.acquire(sequence, cached)
        self.computed[sequence] = cached
        self.produced[sequence] = 0
        sequence.state = State.RUNNING
        self.running[sequence] = None
        fresh = -(-len(sequence.tokens) // self.cache.page_size) - sequence.num_pages
        self._take(sequence, fresh)
        return cached

    def compute(self, sequence: Sequence, until: int) -> None:
        """Compute the KV of the known tokens up to `until`, and publish it."""
        self._write(sequence, until)
        self.cache.publish(sequence, sequence.tokens[:until])

    def can_decode(self, sequence: Sequence) -> bool:
        """Whether its prefill is complete, its script not, and a page there if it needs one."""
        prefilled = self.computed[sequence] >= len(sequence.tokens)
        cache = self.cache
        room = not self.needs_page(sequence) or cache.num_free_pages + cache.num_evictable_pages > 0
        return prefilled and self.produced[sequence] < sequence.num_output_tokens and room

    def needs_page(self, sequence: Sequence) -> bool:
        full = self.computed[sequence] == sequence.num_pages * self.cache.page_size
        return self.produced[sequence] > 0 and full

    def decode(self, sequence: Sequence) -> None:
        """Produce a token; the first one needs no KV, each later one that of its predecessor."""
        if self.produced[sequence]:
            if self.needs_page(sequence):
                self._take(sequence, 1)
            self._write(sequence, self.computed[sequence] + 1)
        self.produced[sequence] += 1

    def finish(self, sequence: Sequence) -> None:
        self.cache.publish(sequence, self.known(sequence)[: self.computed[sequence]])
        self.abort(sequence)

    def abort(self, sequence: Sequence) -> None:
        del self.running[sequence]
        sequence.state = State.FINISHED
        self.cache.release(sequence)

    def serve(
        self, prompt: Iterable[int], output: int | Iterable[int] = 1, namespace: str = ""
    ) -> int:
        """One request from arrival to finish in a step of its own; returns its cached tokens."""
        self.tick()
        sequence = self.wait(prompt, output, namespace)
        cached = self.admit(sequence)
        self.compute(sequence, len(sequence.tokens))
        for _ in range(sequence.num_output_tokens):
            self.decode(sequence)
        self.finish(sequence)
        return cached

    def evict(self, pages: int) -> None:
        """Evict so many pages; with nothing free, exactly those are taken, and given back."""
        free = self.cache.num_free_pages
        size = self.cache.page_size
        sequence = self.wait([-7] * (size * (free + pages)))
        del self.waiting[sequence]
        self.cache.untrack(sequence)
        self.cache.acquire(sequence, 0)
        self._take(sequence, free + pages)
        self.cache.release(sequence)

    def peek(self, *tokens: int, namespace: str = "") -> int:
        return self.cache.peek(tokens_of(tokens), namespace)

    def holds(self, page: int, namespace: str, tokens: Tokens) -> bool:
        """Whether the page's KV was computed for these tokens."""
        return self.written[page] == (namespace, tuple(tokens.tolist()))

    def known(self, sequence: Sequence) -> Tokens:
        """Prompt and what was produced."""
        assert sequence.request.output is not None
        output = sequence.request.output[: self.produced[sequence]]
        return np.concatenate((sequence.request.prompt, output))

    def check(self) -> None:
        """The cache's own books, and every page table against what was written."""
        self.cache.check(self.running)
        size = self.cache.page_size
        for sequence in self.running:
            known = self.known(sequence)
            for place in range(self.computed[sequence] // size):
                page = int(sequence.pages[place])
                end = (place + 1) * size
                assert self.holds(page, sequence.request.namespace, known[:end])

    def _usable(self, sequence: Sequence) -> int:
        cached = min(sequence.num_matched_tokens, len(sequence.tokens) - 1)
        return cached - cached % self.cache.page_size

    def _pages(self, num_tokens: int) -> int:
        return num_tokens // self.cache.page_size

    def _take(self, sequence: Sequence, count: int) -> None:
        sequence.pages[sequence.num_pages : sequence.num_pages + count] = self.cache.take(count)
        sequence.num_pages += count

    def _write(self, sequence: Sequence, until: int) -> None:
        size = self.cache.page_size
        known = self.known(sequence)
        owned = set(owned_pages(sequence).tolist())
        for place in range(self.computed[sequence] // size, until // size):
            page = int(sequence.pages[place])
            assert page in owned, "KV is written to a page of one's own only"
            key = tuple(known[: (place + 1) * size].tolist())
            self.written[page] = (sequence.request.namespace, key)
        self.computed[sequence] = until


def radix_driver(
    num_pages: int = 1000,
    page_size: int = 1,
    eviction: EvictionPolicy | None = None,
    granularity: Literal["page", "node"] = "page",
    split_touch: Literal["ideal", "sglang"] = "ideal",
    listener: Listener | None = None,
) -> CacheDriver:
    """A driver over a radix cache; LRU unless said."""
    cache = RadixCache(
        PagePool(num_pages),
        page_size,
        eviction or Lru(),
        listener or Listener(),
        granularity,
        split_touch,
    )
    return CacheDriver(cache)
