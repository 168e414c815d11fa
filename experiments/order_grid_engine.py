"""The grid of prompt order, service and cache size on a real model, beside the simulator.

python -m experiments.order_grid_engine
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import NamedTuple

import torch

from experiments.progress import ProgressBar
from testbed.commands.engine_options import after
from testbed.core.config import CacheConfig, SchedulerConfig
from testbed.core.cost import CostModel
from testbed.core.records import RunRecord
from testbed.engine.engine import Engine
from testbed.engine.model import load_model
from testbed.metrics.bounds import run_bounds
from testbed.metrics.results import processor
from testbed.policies import registry
from testbed.sim.latency import FixedLatency
from testbed.sim.world import simulate
from testbed.workloads import TemplateSegment, TemplateWorkload

MODEL = "tiny-llama"
REQUESTS = 200
ORDERS = ("canonical", "random_per_request")
SCHEDULERS = ("fcfs", "dfs")
PAGES = (64, 128, 384, 1024, 4096)
"""Cache sizes; a prompt with its output takes 45 pages, and up to four run at a time."""
PAGE_SIZE = 4
BATCHING = SchedulerConfig(max_running=4)


class Point(NamedTuple):
    """One cell of the grid.

    bound, engine, simulator: hit rates, 0 to 1. equal: each request hits as much in both.
    """

    order: str
    scheduler: str
    cache_tokens: int
    bound: float
    engine: float
    simulator: float
    equal: bool


def main() -> int:
    """Serve the grid and print it; 1 if any request hits other tokens than in the simulator."""
    # On matrices this small, a second thread waits more than it computes.
    torch.set_num_threads(1)
    engine = Engine(load_model(MODEL))
    print(
        f"{REQUESTS} prompts at once on {MODEL} (random weights), computed by torch on "
        f"{engine.hardware or processor()}; hit rates\n"
    )
    cells = len(ORDERS) * len(SCHEDULERS) * len(PAGES)
    with ProgressBar(cells * REQUESTS, "engine") as bar:
        points = grid(engine, bar.show)
    print(f"{'order':<20}{'scheduler':<11}{'cache':>7}{'bound':>8}{'engine':>8}{'simulator':>11}")
    for point in points:
        print(
            f"{point.order:<20}{point.scheduler:<11}{point.cache_tokens:>7,}{point.bound:>8.3f}"
            f"{point.engine:>8.3f}{point.simulator:>11.3f}{'' if point.equal else '  DIFFERENT'}"
        )
    different = sum(not point.equal for point in points)
    verdict = (
        f"{different} of {len(points)} cells differ" if different else "equal, request by request"
    )
    print(f"\nengine and simulator: {verdict}")
    return 1 if different else 0


def grid(engine: Engine, progress: Callable[[int], None]) -> list[Point]:
    """Each order, scheduler and cache size, served by both."""
    points = []
    for place, (order, scheduler, pages) in enumerate(product(ORDERS, SCHEDULERS, PAGES)):
        workload = grid_workload(order, engine.model.vocab_size)
        cache = CacheConfig(pages, PAGE_SIZE, insert_at="schedule")
        measured = engine.run(
            workload,
            cache=cache,
            scheduler=BATCHING,
            policy=registry.scheduling(scheduler),
            eviction=registry.eviction("lru"),
            progress=after(place * REQUESTS, progress),
        ).record
        # Any step times will do: where every request waits from the start, they move no decision.
        predicted = simulate(
            workload,
            cache=cache,
            scheduler=BATCHING,
            policy=partial(registry.scheduling, scheduler),
            eviction=lambda: registry.eviction("lru"),
            routing=registry.routing("round_robin"),
            latency=FixedLatency(),
            cost=CostModel(),
        )
        bound = run_bounds(predicted, workload).sharing.rate
        points.append(
            Point(
                order,
                scheduler,
                pages * PAGE_SIZE,
                bound,
                _hit_rate(measured),
                _hit_rate(predicted),
                _hits(measured) == _hits(predicted),
            )
        )
    return points


def grid_workload(order: str, vocab: int) -> TemplateWorkload:
    """System prompt, tools, two of twenty chunks, question and timestamp: 175 tokens."""
    return TemplateWorkload(
        num_requests=REQUESTS,
        system=TemplateSegment(64),
        tools=TemplateSegment(9, values=7, pieces=7),
        context=TemplateSegment(16, values=20, pieces=2, zipf_exponent=1.0),
        question=TemplateSegment(12, values=None),
        timestamp=TemplateSegment(4, values=None),
        user=TemplateSegment(0),
        order=order,
        output_tokens=3,
        vocab=vocab,
    )


def _hit_rate(record: RunRecord) -> float:
    columns = record.requests
    return float(columns["cached_tokens"].sum() / columns["prompt_tokens"].sum())


def _hits(record: RunRecord) -> dict[int, int]:
    columns = record.requests
    return dict(zip(columns["request"].tolist(), columns["cached_tokens"].tolist(), strict=True))


if __name__ == "__main__":
    sys.exit(main())
