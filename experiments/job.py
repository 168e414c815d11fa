"""One job: run a simulation, measure it, write its folder."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.progress import ProgressBar
from experiments.simulation import Simulation
from testbed.metrics.bounds import run_bounds
from testbed.metrics.results import write_run
from testbed.metrics.summary import summarize


def run_job(
    simulation: Simulation,
    folder: Path,
    *,
    config: Mapping[str, Any],
    overrides: Mapping[str, Any],
    bar: ProgressBar,
) -> dict[str, float]:
    """Write one complete run folder and return its summary.

    config: resolved; what identifies the run. overrides: what was set for it, by option.
    """
    recorded = config["record"]
    start = time.perf_counter()
    record = simulation.run(bar.show)
    wall_seconds = time.perf_counter() - start
    bounds = None
    if recorded["bounds"]:
        bounds = run_bounds(
            record,
            simulation.workload,
            min_computed_tokens=simulation.scheduler.min_computed_tokens,
            cache_outputs=simulation.cache.cache_outputs,
        )
    summary = summarize(record, bounds)
    write_run(
        folder,
        config=config,
        record=record,
        summary=summary,
        seed=config["seed"],
        wall_seconds=wall_seconds,
        overrides=overrides,
        write_steps=recorded["steps"],
    )
    return summary
