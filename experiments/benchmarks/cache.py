"""Cache work over the Mooncake conversation trace, against SGLang's Rust tree core."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import NamedTuple

from experiments.benchmarks.bars import Bar, Benchmark, Reached
from experiments.benchmarks.peer_venv import SGLANG
from testbed.core.page_pool import PagePool, Pages
from testbed.core.prefix_cache import CacheListener
from testbed.core.radix_cache import RadixCache
from testbed.core.request import Request, Sequence
from testbed.policies.eviction.recency import Lru
from testbed.workloads import MooncakeTrace, find_data_file

TRACE = "mooncake/conversation_trace.jsonl"
NUM_TOKENS = 3_000_000
PAGE_SIZES = (1, 16)
RUNS = 3
BARS = {size: Bar(f"peer's seconds / product's, page {size}", ">=", 1.0) for size in PAGE_SIZES}


class CacheWork(NamedTuple):
    """seconds: match, lock, evict, insert and unlock of all requests, pages included."""

    seconds: float
    requests: int
    hit_tokens: int
    prompt_tokens: int


class _NobodyListens(CacheListener):
    def on_match(self, sequence: Sequence) -> None:
        """Nobody waits."""

    def on_evict(self, pages: Pages) -> None:
        """Nothing is logged."""


def replay(requests: Iterable[Request], page_size: int, num_tokens: int) -> CacheWork:
    """Serve prompts one at a time through a fresh cache; building the requests is not timed."""
    cache = RadixCache(
        PagePool(num_tokens // page_size), page_size, Lru(), _NobodyListens(), granularity="node"
    )
    clock = time.perf_counter
    seconds = 0.0
    count = hit_tokens = prompt_tokens = 0
    for request in requests:
        sequence = Sequence(request, count)
        length = len(request.prompt)
        start = clock()
        cache.step += 1
        cache.track(sequence)
        cache.untrack(sequence)
        cached = min(sequence.num_matched_tokens, length - 1)
        cached -= cached % page_size
        cache.acquire(sequence, cached)
        shared = sequence.num_pages
        fresh = -(-length // page_size) - shared
        sequence.pages[shared : shared + fresh] = cache.take(fresh)
        sequence.num_pages = shared + fresh
        cache.publish(sequence, request.prompt)
        cache.release(sequence)
        seconds += clock() - start
        count += 1
        hit_tokens += cached
        prompt_tokens += length
    return CacheWork(seconds, count, hit_tokens, prompt_tokens)


def run() -> list[Reached]:
    """Best of RUNS on both sides, in turn, for each page size."""
    trace = MooncakeTrace(TRACE)
    reached = []
    for page_size, bar in BARS.items():
        ours, theirs = [], []
        for _ in range(RUNS):
            ours.append(replay(trace, page_size, NUM_TOKENS))
            theirs.append(
                SGLANG.run(
                    "sglang_cache.py",
                    {
                        "trace": str(find_data_file(TRACE)),
                        "page_size": page_size,
                        "num_tokens": NUM_TOKENS,
                    },
                )
            )
        product, peer = min(ours), min(theirs, key=lambda result: result["seconds"])
        hit_rate = peer["hit_tokens"] / peer["prompt_tokens"]
        print(
            f"page {page_size}: product {product.seconds:.3f} s, "
            f"hit rate {product.hit_tokens / product.prompt_tokens:.4f}; "
            f"SGLang's Rust core {peer['seconds']:.3f} s, hit rate {hit_rate:.4f}"
        )
        parts = ", ".join(f"{name} {seconds:.3f}" for name, seconds in peer["parts"].items())
        print(f"    SGLang's seconds: {parts}")
        reached.append(bar.reached(peer["seconds"] / product.seconds))
    return reached


BENCHMARK = Benchmark(
    "cache",
    "is the radix cache as fast as SGLang 0.5.23's Rust tree core "
    f"(one request at a time, {NUM_TOKENS:,} tokens, LRU)?",
    tuple(BARS.values()),
    run,
)
