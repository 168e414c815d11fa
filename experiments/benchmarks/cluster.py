"""The conversation trace on 64 replicas, under each router in turn."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from typing import NamedTuple

import numpy as np

from experiments.benchmarks.bars import Bar, Benchmark, Reached
from experiments.simulation import Simulation
from testbed.core.config import CacheConfig, SchedulerConfig
from testbed.core.request import Request
from testbed.metrics.bounds import run_bounds
from testbed.metrics.cluster import duplicated_prefix_tokens, load_imbalance
from testbed.policies import registry
from testbed.policies.eviction.recency import Lru
from testbed.sim.hardware import MODELS, get_accelerator, get_efficiency, kv_pool_tokens
from testbed.sim.latency import Roofline
from testbed.workloads import MooncakeTrace

TRACE = "mooncake/conversation_trace.jsonl"
BLOCK = 512
REPLICAS = 64
CLIENTS = 16
PAGE_SIZE = 16
WORKERS = 2
SECONDS = Bar(f"seconds, all routers, {WORKERS} worker processes", "<", 300.0, "s")


class Conversations:
    """The trace sped up as often as there are replicas, dealt to clients of unequal shares; a
    conversation (an equal second block) is a program, so that there are sessions to stick to."""

    name = "conversations"
    skipped_lines = 0

    def __init__(self, limit: int | None = None) -> None:
        self._trace = MooncakeTrace(TRACE, limit=limit, speedup=REPLICAS, clients=CLIENTS)

    def __len__(self) -> int:
        return len(self._trace)

    def __iter__(self) -> Iterator[Request]:
        for request in self._trace:
            long = len(request.prompt) > BLOCK
            program = f"block {request.prompt[BLOCK]}" if long else f"request {request.id}"
            yield replace(request, program=program)


class Row(NamedTuple):
    """What a router made of the trace. clairvoyant: the hit rate of clairvoyant eviction for what
    each replica was sent. duplicated: prefix tokens, see metrics.cluster."""

    router: str
    hit_rate: float
    clairvoyant: float
    duplicated: int
    imbalance: float
    ttft_mean_s: float
    ttft_p99_s: float
    seconds: float


def simulation(router: str, workload: Conversations) -> Simulation:
    """64 H100s with LPM inside, DLPM where the router has deficits of its own."""
    model, accelerator = MODELS["llama-3.1-8b"], get_accelerator("h100")
    scheduler = "dlpm" if router == "d2lpm" else "lpm"
    return Simulation(
        workload,
        cache=CacheConfig(kv_pool_tokens(model, accelerator) // PAGE_SIZE, PAGE_SIZE),
        scheduler=SchedulerConfig(),
        policy=lambda: registry.scheduling(scheduler),
        eviction=Lru,
        routing=lambda: registry.routing(router),
        latency=Roofline(model, accelerator, get_efficiency("h100", "sglang")),
        kv_bytes_per_token=model.kv_bytes_per_token,
        replicas=REPLICAS,
    )


def serve(router: str, limit: int | None = None) -> Row:
    """One run and its figures."""
    start = time.perf_counter()
    workload = Conversations(limit)
    record = simulation(router, workload).run().record
    requests = record.requests
    ttft = requests["first_token_s"] - requests["arrival_s"]
    return Row(
        router,
        hit_rate=float(requests["cached_tokens"].sum() / requests["prompt_tokens"].sum()),
        clairvoyant=run_bounds(record, workload).clairvoyant.rate,
        duplicated=duplicated_prefix_tokens(record, workload),
        imbalance=load_imbalance(record),
        ttft_mean_s=float(ttft.mean()),
        ttft_p99_s=float(np.quantile(ttft, 0.99)),
        seconds=time.perf_counter() - start,
    )


def run() -> list[Reached]:
    """Every router that ships, by name."""
    start = time.perf_counter()
    print(
        f"{REPLICAS} H100s with Llama-3.1-8B, the trace sped up {REPLICAS} times, views live; "
        "LPM inside, DLPM for d2lpm; all routers at their defaults"
    )
    header = ("hit rate", "clairv.", "dupl. M", "imbalance", "TTFT mean", "p99 s", "run s")
    print(f"{'router':<16}" + "".join(f"{title:>12}" for title in header))
    # Spawned, so that no worker starts with this process's memory.
    with ProcessPoolExecutor(WORKERS, mp_context=get_context("spawn")) as workers:
        for row in workers.map(serve, registry.BUILT_IN["routing"]):
            print(
                f"{row.router:<16}{row.hit_rate:12.4f}{row.clairvoyant:12.4f}"
                f"{row.duplicated / 1e6:12.2f}{row.imbalance:12.3f}{row.ttft_mean_s:12.2f}"
                f"{row.ttft_p99_s:12.2f}{row.seconds:12.1f}",
                flush=True,
            )
    return [SECONDS.reached(time.perf_counter() - start)]


BENCHMARK = Benchmark(
    "cluster",
    f"what does each router make of the conversation trace on {REPLICAS} replicas?",
    (SECONDS,),
    run,
)
