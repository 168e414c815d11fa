"""Every hit of an unlimited cache on the Mooncake conversation trace, to the token."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from experiments.benchmarks.bars import Bar, Benchmark, Reached
from experiments.benchmarks.peer_venv import SGLANG
from testbed.core.batch import StepResult
from testbed.core.config import CacheConfig, SchedulerConfig
from testbed.core.request import Request
from testbed.core.scheduler import Scheduler
from testbed.policies.eviction.recency import Lru
from testbed.policies.scheduling.arrival import Fcfs
from testbed.workloads import MooncakeTrace, find_data_file

TRACE = "mooncake/conversation_trace.jsonl"
UNLIMITED = 2**31 - 1
HIT_TOKENS = Bar("hit tokens", "==", 54_098_411, "tokens")
PROMPT_TOKENS = Bar("prompt tokens", "==", 144_793_823, "tokens")
PEER_TOKENS = Bar("hit tokens of SGLang's tree", "==", 54_098_411, "tokens")


def serve_one_at_a_time(requests: Iterable[Request]) -> tuple[int, int]:
    """(hit, prompt) tokens in arrival order, each request alone, nothing ever evicted, page 1.

    A prompt that is cached whole counts whole: no token is kept back for its logits.
    """
    scheduler = Scheduler(
        CacheConfig(num_pages=UNLIMITED, page_size=1),
        SchedulerConfig(max_running=1, chunk_size=0, min_computed_tokens=0),
        Fcfs(),
        Lru(),
    )
    hit_tokens = prompt_tokens = 0
    for request in requests:
        sequence = scheduler.add(replace(request, max_new_tokens=1), 0.0)
        batch = scheduler.schedule(0.0)
        assert batch is not None
        scheduler.commit(batch, StepResult(0.0), 0.0)
        hit_tokens += sequence.num_cached_tokens
        prompt_tokens += sequence.num_prompt_tokens
    return hit_tokens, prompt_tokens


def run() -> list[Reached]:
    """The scheduler's count, and that of SGLang's Rust tree core on the same trace."""
    hit_tokens, prompt_tokens = serve_one_at_a_time(MooncakeTrace(TRACE))
    print(f"product: {hit_tokens:,} of {prompt_tokens:,} = {hit_tokens / prompt_tokens:.2%}")
    peer = SGLANG.run(
        "sglang_cache.py",
        {
            "trace": str(find_data_file(TRACE)),
            "page_size": 1,
            "num_tokens": UNLIMITED,
            "uncomputed": 0,
        },
    )
    print(f"SGLang's tree: {peer['hit_tokens']:,} of {peer['prompt_tokens']:,}")
    return [
        PROMPT_TOKENS.reached(prompt_tokens),
        PEER_TOKENS.reached(peer["hit_tokens"]),
        HIT_TOKENS.reached(hit_tokens),
    ]


BENCHMARK = Benchmark(
    "exact",
    "are the hits of an unlimited cache on a real trace right to the token?",
    (PROMPT_TOKENS, PEER_TOKENS, HIT_TOKENS),
    run,
)
