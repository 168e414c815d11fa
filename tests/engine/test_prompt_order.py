"""The grid of order, service and cache size gives the same hits on a real model as simulated."""

from __future__ import annotations

from typing import Any

import pytest

from testbed.core.config import CacheConfig, SchedulerConfig
from testbed.policies import registry
from testbed.policies.routing.load import RoundRobin
from testbed.sim import simulate
from testbed.sim.latency import FixedLatency
from testbed.workloads import TemplateSegment, TemplateWorkload
from tests.engine.building import Models, run_engine

SMALL: dict[str, Any] = {
    "num_requests": 24,
    "system": TemplateSegment(24),
    "tools": TemplateSegment(5, values=4, pieces=4),
    "context": TemplateSegment(12, values=6, pieces=2, zipf_exponent=1.0),
    "question": TemplateSegment(6, values=None),
    "timestamp": TemplateSegment(4, values=None),
    "user": TemplateSegment(0),
    "output_tokens": 3,
    "vocab": 512,
}


@pytest.mark.parametrize("order", ["canonical", "random_per_request"])
@pytest.mark.parametrize("policy", ["fcfs", "dfs"])
@pytest.mark.parametrize("num_pages", [24, 48, 400])
def test_the_engine_hits_what_the_simulator_hits(
    models: Models, order: str, policy: str, num_pages: int
) -> None:
    workload = TemplateWorkload(order=order, **SMALL)
    cache = CacheConfig(num_pages, page_size=4)
    scheduler = SchedulerConfig(max_running=4)
    run = run_engine(models["tiny-llama"], workload, cache, scheduler, policy=policy)
    simulated = simulate(
        workload,
        cache=cache,
        scheduler=scheduler,
        policy=lambda: registry.scheduling(policy),
        eviction=lambda: registry.eviction("lru"),
        routing=RoundRobin(),
        latency=FixedLatency(),
    )
    hits, expected = (
        dict(zip(columns["request"].tolist(), columns["cached_tokens"].tolist(), strict=True))
        for columns in (run.record.requests, simulated.requests)
    )
    assert hits == expected
    assert sum(hits.values()) > 0
