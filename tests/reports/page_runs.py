"""A small sweep that was really simulated, for the tests of the report page."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from testbed.core.config import CacheConfig, SchedulerConfig
from testbed.metrics.bounds import run_bounds
from testbed.metrics.results import write_run
from testbed.metrics.summary import summarize
from testbed.policies import registry
from testbed.sim.hardware import EFFICIENCY, HARDWARE, MODELS
from testbed.sim.latency import Roofline
from testbed.sim.world import simulate
from testbed.workloads import PoissonArrivals, RagWorkload, Retimed

CACHE = CacheConfig(num_pages=3000, page_size=16)
ROOFLINE = Roofline(MODELS["llama-3.1-8b"], HARDWARE["h100"], EFFICIENCY["h100", "vllm"])


def write_sweep(
    folder: Path,
    schedulers: tuple[str, ...] = ("fcfs", "lpm"),
    seeds: tuple[int, ...] = (0, 1),
    *,
    replicas: int = 1,
    write_steps: bool = True,
    rate: float = 20.0,
    overrides: dict[str, Any] | None = None,
    **workload: Any,
) -> Path:
    """One run for each scheduler and seed, in FOLDER/SCHEDULER-SEED; returns the folder."""
    terms = {"num_requests": 60, "documents": 20, "system_tokens": 200, **workload}
    for scheduler in schedulers:
        policy = registry.find("scheduling", scheduler)
        for seed in seeds:
            asked = Retimed(RagWorkload(**terms, seed=seed), PoissonArrivals(rate, seed))
            record = simulate(
                asked,
                cache=CACHE,
                scheduler=SchedulerConfig(),
                policy=partial(registry.scheduling, scheduler),
                eviction=partial(registry.eviction, "lru"),
                routing=registry.routing("round_robin"),
                latency=ROOFLINE,
                replicas=replicas,
            )
            write_run(
                folder / f"{scheduler}-{seed}",
                config={
                    "workload": {
                        "_target_": "testbed.workloads.RagWorkload",
                        **terms,
                        "seed": seed,
                    },
                    "arrivals": {"rate": rate},
                    "scheduler": {"_target_": f"{policy.__module__}.{policy.__qualname__}"},
                    "cache": asdict(CACHE),
                    "seed": seed,
                },
                record=record,
                summary=summarize(record, run_bounds(record, asked)),
                seed=seed,
                wall_seconds=1.0,
                overrides={"scheduler": scheduler, **(overrides or {})},
                write_steps=write_steps,
            )
    return folder
