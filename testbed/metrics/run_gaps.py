"""The three gaps of finished runs, each beside the run that served the same depth first."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from testbed.metrics.gaps import Gaps
from testbed.metrics.loading import Results

SERVICE, DEPTH_FIRST = "scheduler", "dfs"
OTHERS = ("run", "seed", "record", "check", "output", SERVICE)
"""Options in which a run and its partner may differ; their seeds are compared by themselves."""


def run_gaps(results: Results) -> dict[str, Gaps]:
    """By name, the gaps of each run under another scheduler than `dfs`.

    Its partner has the same options and seed but for the scheduler. Runs without one, and runs
    without a sharing bound (record.bounds=false), are left out. The template gap is NaN for
    workloads without segments, and for runs whose summary has no best_order_bound.
    """
    frame = results.config.assign(**dict(results.summary.items()))
    if SERVICE not in frame or "sharing_bound" not in frame:
        return {}
    runs = {str(run["run"]): run for run in frame.to_dict("records")}
    keys = {name: _key(config, runs[name]["seed"]) for name, config in results.configs.items()}
    depth_first = {
        keys[name]: run["hit_rate"] for name, run in runs.items() if run[SERVICE] == DEPTH_FIRST
    }
    return {
        name: Gaps(
            run.get("best_order_bound", math.nan),
            run["sharing_bound"],
            depth_first[keys[name]],
            run["hit_rate"],
        )
        for name, run in runs.items()
        if run[SERVICE] != DEPTH_FIRST
        and keys[name] in depth_first
        and not any(math.isnan(rate) for rate in (run["sharing_bound"], run["hit_rate"]))
        and not math.isnan(depth_first[keys[name]])
    }


def _key(config: Mapping[str, Any], seed: int) -> str:
    """Equal for runs that differ in nothing but OTHERS."""
    kept = {name: value for name, value in config.items() if name not in OTHERS}
    return json.dumps([kept, seed], sort_keys=True, default=str)
