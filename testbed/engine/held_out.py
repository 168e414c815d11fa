"""Loads that show whether a simulation predicts an engine's times."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from testbed.core.config import CacheConfig, SchedulerConfig
from testbed.engine.calibration import CalibrationGrid
from testbed.engine.engine import Engine
from testbed.engine.loop import EngineRun
from testbed.policies import registry
from testbed.workloads import (
    AllAtOnce,
    Arrivals,
    Client,
    MultiClientWorkload,
    PoissonArrivals,
    Retimed,
    Workload,
)

LOADS = {"below": 0.5, "at": 0.9, "past": 2.0}
"""Arrivals over what the engine serves when all requests wait at once."""


@dataclass(frozen=True)
class Case:
    """One load, and how it is served; the same for the engine and for the simulation."""

    name: str
    workload: Workload
    cache: CacheConfig
    scheduler: SchedulerConfig
    policy: str
    eviction: str

    def run(self, engine: Engine, progress: Callable[[int], None] | None = None) -> EngineRun:
        """Serve it on the engine."""
        return engine.run(
            self.workload,
            cache=self.cache,
            scheduler=self.scheduler,
            policy=registry.scheduling(self.policy),
            eviction=registry.eviction(self.eviction),
            progress=progress,
        )


def mixed_clients(grid: CalibrationGrid, vocab: int, num_requests: int, seed: int) -> Workload:
    """Five clients whose prompts share texts of their own, of all lengths that the grid covers.

    Two look a few documents up, one asks short questions behind a long system prompt, one brings
    new text, and one wants long answers.
    """
    unit = grid.max_context // 16
    shapes = (
        # name, share of the requests, documents, tokens of each, new tokens, output tokens
        ("library", 4, 6, 6 * unit, 1 * unit, 1 * unit),
        ("archive", 3, 3, 8 * unit, 2 * unit, unit // 2),
        ("questions", 4, 1, 4 * unit, unit // 2, 2 * unit),
        ("papers", 2, 1, 0, 7 * unit, unit // 4),
        ("stories", 2, 2, 1 * unit, 1 * unit, 3 * unit),
    )
    total = sum(shape[1] for shape in shapes)
    clients = [
        Client(
            name,
            rate=share / total,
            prompt_tokens=new,
            output_tokens=max(1, output),
            system_tokens=tokens,
            documents=documents,
            cv=1.0,
        )
        for name, share, documents, tokens, new, output in shapes
    ]
    return MultiClientWorkload(clients, duration=float(num_requests), vocab=vocab, seed=seed)


def held_out_cases(
    engine: Engine, grid: CalibrationGrid, num_requests: int, seed: int = 0
) -> list[Case]:
    """Loads below, at and past saturation, and one whose cache thrashes.

    The capacity that the rates relate to is measured here, once, on an engine that is warm, with
    everything waiting at 0. The prompts are not made like those of the calibration.
    """
    longest = -(-grid.max_context // grid.page_size)
    roomy = CacheConfig(num_pages=2 * longest * grid.max_running, page_size=grid.page_size)
    # The running sequences leave next to no page to the cache.
    small = CacheConfig(num_pages=6 * longest, page_size=grid.page_size)
    scheduler = SchedulerConfig(max_running=grid.max_running, chunk_size=grid.chunk_size)

    def case(name: str, arrivals: Arrivals, cache: CacheConfig, place: int) -> Case:
        own = 1000 * (seed + 1) + place
        workload = mixed_clients(grid, engine.model.vocab_size, num_requests, own)
        return Case(name, Retimed(workload, arrivals), cache, scheduler, grid.policy, "lru")

    def capacity(cache: CacheConfig) -> float:
        run = case("all at once", AllAtOnce(), cache, 0).run(engine)
        return len(run.record.requests["request"]) / float(run.record.requests["finish_s"].max())

    most = capacity(roomy)
    cases = [
        case(name, PoissonArrivals(most * load, seed=place), roomy, place)
        for place, (name, load) in enumerate(LOADS.items(), start=1)
    ]
    thrashing = PoissonArrivals(capacity(small) * LOADS["at"], seed=4)
    return [*cases, case("thrashing", thrashing, small, 4)]
