"""One job: run a simulation, measure it, write its folder."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from experiments.simulation import Simulation
from testbed.metrics.best_bound import Segmented, best_order_bound
from testbed.metrics.bounds import run_bounds
from testbed.metrics.results import write_run
from testbed.metrics.summary import summarize
from testbed.workloads import Retimed


def run_job(
    simulation: Simulation,
    folder: Path,
    *,
    config: Mapping[str, Any],
    overrides: Mapping[str, Any],
    progress: Callable[[int], None] | None = None,
) -> dict[str, float]:
    """Write one complete run folder and return its summary.

    config: resolved, what identifies the run; `record` and `seed` are read. overrides: what was
    set for it, by option. progress: hears how many requests have left.
    """
    recorded = config["record"]
    start = time.perf_counter()
    record, requests = simulation.run(progress)
    wall_seconds = time.perf_counter() - start
    bounds = best_order = None
    if recorded["bounds"]:
        rules: dict[str, Any] = {
            "min_computed_tokens": simulation.scheduler.min_computed_tokens,
            "cache_outputs": simulation.cache.cache_outputs,
        }
        bounds = run_bounds(record, requests, **rules)
        asked = simulation.workload
        template = asked.workload if isinstance(asked, Retimed) else asked
        if isinstance(template, Segmented):
            best_order = best_order_bound(template, record, bounds.sharing, **rules)
    summary = summarize(record, bounds, best_order)
    made = (("scheduler", simulation.policy()), ("eviction", simulation.eviction()))
    write_run(
        folder,
        config=config,
        record=record,
        summary=summary,
        seed=config["seed"],
        wall_seconds=wall_seconds,
        overrides=overrides,
        write_steps=recorded["steps"],
        oracles=[option for option, policy in made if policy.oracle],
    )
    return summary
