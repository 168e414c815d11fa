"""Engine runs, written down to be replayed and predicted by the simulator elsewhere.

The offered load follows the capacity that a first run finds: below, at and past it, and with a
cache that is too small for what is asked again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch

from experiments.gpu.models import Built, build, executor
from experiments.gpu.recorded import SUFFIX, SavedRun, config_of, save
from experiments.gpu.setting import Setting
from testbed.core.config import CacheConfig, SchedulerConfig
from testbed.engine.executor import ModelExecutor
from testbed.engine.loop import EngineRun, serve
from testbed.policies import registry
from testbed.workloads import AllAtOnce, PoissonArrivals, RagWorkload, Retimed

MODEL = "llama-8b"
EVICTION = "lru"
SECONDS = 8.0
"""How long requests arrive, at the rate that a run is about."""
REQUESTS = (40, 500)
"""The fewest and the most of a run."""
SMALL_CACHE_TOKENS = 40_000
"""A third of the corpus and the system prompts."""


class Load(NamedTuple):
    """rate: requests a second, as a share of the capacity; 0 for all at once. small: the cache."""

    name: str
    rate: float
    policy: str
    small: bool


LOADS = (
    Load("below", 0.6, "fcfs", False),
    Load("at", 1.0, "fcfs", False),
    Load("past", 1.5, "fcfs", False),
    Load("thrash", 0.8, "fcfs", True),
    Load("lpm", 0.0, "lpm", True),
)


def rag(setting: Setting, requests: int, seed: int, vocab: int) -> RagWorkload:
    """Retrieval-augmented prompts, of the workload's own lengths."""
    if setting.smoke:
        return RagWorkload(
            requests,
            tenants=1,
            system_tokens=20,
            documents=4,
            document_tokens=16,
            question_tokens=5,
            output_tokens=2,
            vocab=vocab,
            seed=seed,
        )
    return RagWorkload(requests, vocab=vocab, seed=seed)


def serve_load(
    load: Load,
    arrivals: AllAtOnce | PoissonArrivals,
    workload: RagWorkload,
    built: Built,
    runner: ModelExecutor,
    setting: Setting,
) -> tuple[SavedRun, float]:
    """One run, and the seconds that it took."""
    pool = built.pool
    pages = pool.num_pages
    if load.small:
        pages = setting.size(SMALL_CACHE_TOKENS, 160) // pool.page_size
    cache = CacheConfig(num_pages=pages, page_size=pool.page_size)
    scheduler = SchedulerConfig(chunk_size=setting.size(2048, 64), reserve="ratio")
    began = perf_counter()
    run: EngineRun = serve(
        Retimed(workload, arrivals),
        executor=runner,
        cache=cache,
        scheduler=scheduler,
        policy=registry.scheduling(load.policy),
        eviction=registry.eviction(EVICTION),
    )
    seconds = perf_counter() - began
    bytes_per_page = built.model.kv_bytes_per_token * pool.page_size
    counters = {**run.record.counters, "bytes_per_page": bytes_per_page}
    dtype = str(built.model.dtype).removeprefix("torch.")
    described = {
        "kind": type(workload).__name__,
        **asdict(workload),
        "arrivals": {"kind": type(arrivals).__name__, **asdict(arrivals)},
    }
    config = config_of(MODEL, dtype, cache, scheduler, load.policy, EVICTION, described)
    machine = {"hardware": setting.card, "torch": torch.__version__, "smoke": setting.smoke}
    record = run.record._replace(counters=counters)
    return SavedRun(config, machine, record, run.added, run.measured), seconds


def summary_of(saved: SavedRun) -> dict[str, float]:
    """The numbers that a prediction is held against, from the record's columns."""
    requests = saved.record.requests
    ttft = requests["first_token_s"] - requests["arrival_s"]
    later = np.maximum(1, requests["output_tokens"] - 1)
    tpot = (requests["finish_s"] - requests["first_token_s"]) / later
    makespan = float(requests["finish_s"].max())
    return {
        "requests": len(ttft),
        "steps": len(saved.measured["seconds"]),
        "makespan_s": makespan,
        "output_tokens_per_s": float(requests["output_tokens"].sum()) / makespan,
        "hit_rate": float(requests["cached_tokens"].sum() / requests["prompt_tokens"].sum()),
        "ttft_p50_s": float(np.quantile(ttft, 0.5)),
        "ttft_p95_s": float(np.quantile(ttft, 0.95)),
        "tpot_p50_s": float(np.quantile(tpot, 0.5)),
        "tpot_p95_s": float(np.quantile(tpot, 0.95)),
        "preemptions": int(requests["preemptions"].sum()),
    }


def run(setting: Setting) -> Iterator[dict[str, Any]]:
    """Serve every load, and write each down as it ends."""
    built = build(MODEL, setting)
    max_tokens = setting.size(4096, 200)
    runner = executor(built, setting, graphs=True, ahead=True, max_tokens=max_tokens)
    vocab = built.model.vocab_size
    count = setting.size(REQUESTS[0], 2)
    offline = Load("offline", 0.0, "fcfs", False)
    # The first time compiles; the second finds the capacity.
    for seed in (1, 2)[: setting.size(2, 1)]:
        workload = rag(setting, count, seed, vocab)
        _, seconds = serve_load(offline, AllAtOnce(), workload, built, runner, setting)
    capacity = count / seconds
    print(f"capacity: {capacity:.1f} requests/s", flush=True)
    yield {"model": MODEL, "capacity_requests_per_s": capacity}
    summaries: dict[str, dict[str, float]] = {}
    for seed, load in enumerate(LOADS):
        if setting.time_is_up:
            break
        if not setting.smoke:
            wanted = round(SECONDS * capacity * (load.rate or 1.0))
            count = min(max(wanted, REQUESTS[0]), REQUESTS[1])
        rate = capacity * load.rate
        arrivals = PoissonArrivals(rate, seed) if load.rate else AllAtOnce()
        workload = rag(setting, count, seed, vocab)
        saved, _ = serve_load(load, arrivals, workload, built, runner, setting)
        save(setting.folder / f"{load.name}{SUFFIX}", saved)
        summaries[load.name] = summary = summary_of(saved)
        print(
            f"{load.name:8} {summary['requests']:4.0f} requests at {rate:6.1f}/s: "
            f"{summary['output_tokens_per_s']:7.0f} tokens/s, hit rate {summary['hit_rate']:.3f}, "
            f"TTFT p50 {summary['ttft_p50_s']:.3f} s, TPOT p50 {summary['tpot_p50_s'] * 1e3:.1f} ms"
            f", {summary['preemptions']} preemptions",
            flush=True,
        )
        yield {"loads": summaries}
