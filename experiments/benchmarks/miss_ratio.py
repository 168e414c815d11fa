"""Hits by cache size on the conversation trace, LRU and optimal, beside kvcache-simulator's."""

from __future__ import annotations

import time
from typing import Any

from experiments.benchmarks.bars import Bar, Benchmark, Reached
from experiments.benchmarks.peer_venv import KVCACHE_SIMULATOR
from testbed.metrics.bounds import clairvoyant_bound
from testbed.metrics.miss_ratio import lru_curve
from testbed.metrics.prompt_paths import PromptPaths, block_paths
from testbed.workloads import MooncakeTrace, find_data_file

TRACE = "mooncake/conversation_trace.jsonl"
BLOCK_SIZE = 512
BLOCKS = (5_000, 10_000, 30_000, 100_000)
DIFFERENT = Bar("hit tokens that differ, of LRU and optimal at four sizes", "==", 0, "tokens")


def hits_of_second_half(paths: PromptPaths, capacity: int) -> dict[str, int]:
    """Hit tokens of the later half of the requests, in a cache that the earlier half has filled."""
    half = len(paths.stored) // 2
    both, earlier = lru_curve(paths), lru_curve(paths, range(half))
    # Its optimum may serve a request without storing what will be used latest.
    optimal = clairvoyant_bound(paths, capacity, may_bypass=True).request_hit_tokens[half:]
    return {
        # What is hit in the earlier half does not depend on what comes later.
        "lru": both.hit_tokens(capacity) - earlier.hit_tokens(capacity),
        "optimal": int(optimal.sum()),
    }


def trace_paths() -> PromptPaths:
    """The trace as block ids, the last of each prompt perhaps partial."""
    requests = list(MooncakeTrace(TRACE, block_size=BLOCK_SIZE))
    blocks = [(request.prompt[::BLOCK_SIZE] // BLOCK_SIZE).tolist() for request in requests]
    return block_paths(blocks, [len(request.prompt) for request in requests], BLOCK_SIZE)


def run() -> list[Reached]:
    """Both sides over the same file; kvcache-simulator measures the later half alone."""
    start = time.perf_counter()
    paths = trace_paths()
    ours = {size: hits_of_second_half(paths, size) for size in BLOCKS}
    seconds = time.perf_counter() - start
    theirs: dict[str, Any] = KVCACHE_SIMULATOR.run(
        "kvcache_simulator_sweep.py",
        {
            "trace": str(find_data_file(TRACE)),
            "block_size": BLOCK_SIZE,
            "blocks": list(BLOCKS),
            "policies": ["lru", "optimal"],
        },
    )
    different = 0
    for policy in ("lru", "optimal"):
        for size in BLOCKS:
            mine, other = ours[size][policy], theirs["hits"][policy][str(size)]
            different += abs(mine - other)
            print(
                f"{policy}, {size:,} blocks: product {mine / theirs['tokens']:.4%}, "
                f"kvcache-simulator {other / theirs['tokens']:.4%}"
            )
    print(f"product: {seconds:.1f} s, from the trace file on")
    return [DIFFERENT.reached(different)]


BENCHMARK = Benchmark(
    "miss_ratio",
    "hits by cache size on the conversation trace, LRU and optimal: the same as a peer's?",
    (DIFFERENT,),
    run,
)
