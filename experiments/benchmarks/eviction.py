"""Eviction policies on the Mooncake conversation trace, block by block, against libCacheSim.

Two ways to serve one trace through the same radix cache and policies. flat: each block is a request
of its own, so that the tree is a set of leaves, as in a block cache that forgets what hangs on
what. tree: a request is the path of its blocks, and only leaves leave. docs/eviction.md says where
the definitions of others differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from types import MappingProxyType

import numpy as np

from experiments.benchmarks.bars import Bar, Benchmark, Reached
from experiments.benchmarks.peer_venv import LIBCACHESIM
from testbed.core.config import CacheConfig, SchedulerConfig
from testbed.core.prefix_cache import PrefixCache
from testbed.core.request import Request
from testbed.core.request import Sequence as RunningSequence
from testbed.core.scheduler import Scheduler
from testbed.core.views import RequestView, SequenceView
from testbed.metrics.bounds import clairvoyant_bound, sharing_bound
from testbed.metrics.prompt_paths import prompt_paths
from testbed.policies import EvictionPolicy
from testbed.policies.eviction.frequency import Lfu, Slru
from testbed.policies.eviction.lazy_promotion import S3Fifo, Sieve
from testbed.policies.eviction.oracle import Belady
from testbed.policies.eviction.recency import Fifo, Lru
from testbed.policies.scheduling.arrival import Fcfs
from testbed.workloads import MooncakeTrace, find_data_file

TRACE = "mooncake/conversation_trace.jsonl"
BLOCK_SIZE = 512
BLOCKS = (1_000, 5_000, 10_000, 30_000, 50_000)
POLICIES: Mapping[str, tuple[str, Callable[[], EvictionPolicy]]] = MappingProxyType(
    {
        "LRU": ("LRU", Lru),
        "FIFO": ("FIFO", Fifo),
        "LFU": ("LFU", Lfu),
        "SLRU": ("SLRU", Slru),
        "S3-FIFO": ("S3FIFO", S3Fifo),
        "SIEVE": ("Sieve", Sieve),
        "Belady": ("Belady", lambda: Belady(min_computed_tokens=0)),
    }
)
"""By name: libcachesim's class, and ours."""
OTHER_RULE = ("SLRU",)
"""libCacheSim's has four segments of bounded size, ours (SGLang's) two without a bound."""
REFERENCE_TREE: Mapping[str, tuple[float, ...]] = MappingProxyType(
    {
        "LRU": (4.453, 11.182, 21.160, 32.575),
        "FIFO": (4.451, 11.158, 21.093, 32.577),
        "LFU": (4.808, 9.235, 13.173, 27.595),
    }
)
"""Block hits in per cent at the first four sizes, by an independent implementation of leaf-only
eviction (it agrees with kvcache-simulator 0.1.3 on LRU to all digits which that prints)."""
REFERENCE_BYPASS = (19.071, 34.124, 36.641, 36.641)
"""The same implementation's Belady, which may leave blocks uncached and so is another rule."""
DIFFERENCE = Bar(
    "largest difference from libCacheSim (flat), the reference and the bound (tree)",
    "<",
    2,
    "block hits",
)


def requests_of(rows: Iterable[Sequence[int]]) -> list[Request]:
    """One request a row of block ids, a token for each block."""
    return [
        Request(number, np.array(row, dtype=np.int32), max_new_tokens=1)
        for number, row in enumerate(rows)
    ]


def block_rows(limit: int | None = None) -> list[list[int]]:
    """The block ids of the trace's requests, the last block of a prompt perhaps partial."""
    trace = MooncakeTrace(TRACE, block_size=BLOCK_SIZE)
    prompts = (request.prompt for request in islice(trace, limit))
    return [(prompt[::BLOCK_SIZE] // BLOCK_SIZE).tolist() for prompt in prompts]


def count_hits(requests: Sequence[Request], policy: EvictionPolicy, blocks: int) -> int:
    """Cached blocks that requests find, served one at a time through a cache of so many blocks."""
    if policy.oracle:
        policy.on_future([RequestView(request) for request in requests])
    config = SchedulerConfig(max_running=1, min_computed_tokens=0)
    # The scheduler starts the policy; the cache is then served without it, which is quicker.
    cache = Scheduler(CacheConfig(blocks, page_size=1), config, Fcfs(), policy).cache
    return sum(_serve(cache, request) for request in requests)


def _serve(cache: PrefixCache, request: Request) -> int:
    sequence = RunningSequence(request, request.id)
    sequence.view = SequenceView(sequence)
    cache.step += 1
    cache.track(sequence)
    cache.untrack(sequence)
    hit, length = sequence.num_matched_tokens, len(request.prompt)
    cache.acquire(sequence, hit)
    sequence.pages[hit:length] = cache.take(length - hit)
    sequence.num_pages = length
    cache.publish(sequence, request.prompt)
    cache.release(sequence)
    return hit


def run() -> list[Reached]:
    """Every policy at every size, both ways, beside what others count on the same accesses."""
    rows = block_rows()
    whole = requests_of(rows)
    single = requests_of([block] for row in rows for block in row)
    peer = LIBCACHESIM.run(
        "libcachesim_flat.py",
        {
            "trace": str(find_data_file(TRACE)),
            "blocks": BLOCKS,
            "policies": [name for name, _ in POLICIES.values()],
        },
    )
    paths = prompt_paths(whole, 1, min_computed_tokens=0)
    sharing = sharing_bound(paths).hit_tokens
    best = {blocks: clairvoyant_bound(paths, blocks).hit_pages for blocks in BLOCKS}
    total = len(single)
    print(f"{len(whole):,} requests, {total:,} blocks; nothing can hit more than {sharing:,}")
    print("block hits in per cent; prefix: libCacheSim's hits that extend a run from the start")
    print("of best: hits on the tree, of those that Belady's rule reaches there")
    print(
        f"{'':8} {'blocks':>7} {'flat':>8} {'libCache':>9} {'prefix':>8} {'tree':>8} {'of best':>8}"
        "  apart"
    )
    largest = 0
    for name, (peer_name, build) in POLICIES.items():
        for place, blocks in enumerate(BLOCKS):
            flat, tree = count_hits(single, build(), blocks), count_hits(whole, build(), blocks)
            theirs, prefix = peer["hits"][peer_name][str(blocks)]
            apart = [] if name in OTHER_RULE else [abs(flat - theirs)]
            if name == "Belady":
                apart.append(abs(tree - best[blocks]))
            elif name in REFERENCE_TREE and place < len(REFERENCE_TREE[name]):
                apart.append(round(abs(tree - REFERENCE_TREE[name][place] * total / 100)))
            largest = max(largest, *apart, 0)
            figures = [f"{100 * hits / total:.3f}" for hits in (flat, theirs, prefix, tree)]
            print(
                f"{name:8} {blocks:7,} {figures[0]:>8} {figures[1]:>9} {figures[2]:>8} "
                f"{figures[3]:>8} {tree / best[blocks]:8.1%}  "
                f"{', '.join(map(str, apart)) or 'another rule'}",
                flush=True,
            )
            if name == "Belady" and place < len(REFERENCE_BYPASS):
                more = max(0.0, REFERENCE_BYPASS[place] - 100 * tree / total)
                print(f"{'':8} leaving blocks uncached as well: {more:.3f} points more")
    return [DIFFERENCE.reached(largest)]


BENCHMARK = Benchmark(
    "eviction",
    "do the eviction policies hit what libCacheSim 0.3.5 and other implementations hit, on the "
    "conversation trace in blocks of 512 tokens?",
    (DIFFERENCE,),
    run,
)
