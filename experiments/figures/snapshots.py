"""The radix tree at any moment of a run that is on disk: the run is simulated once more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pkgutil import resolve_name
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from experiments.config import build_simulation
from testbed.core.policy import SchedulingPolicy
from testbed.core.views import SchedulerView
from testbed.metrics.loading import Results
from testbed.metrics.results import ResultsError
from testbed.metrics.stored import read_record
from testbed.metrics.tree import tree_table


class Snapshot(NamedTuple):
    """nodes: by testbed.metrics.tree.TREE_COLUMNS. step: the replica's steps so far."""

    time_s: float
    step: int
    nodes: pd.DataFrame


def tree_snapshots(results: Results, moments: Sequence[float], replica: int = 0) -> list[Snapshot]:
    """The tree of one replica when the first request left at or after each moment.

    moments: parts of the time from the first arrival to the last, increasing. Raises ValueError if
    there is more than one run, ResultsError if this code does not repeat the run that is stored.
    """
    if len(results.folders) != 1:
        raise ValueError(f"{len(results.folders)} runs: one run is needed to show its tree")
    ((name, folder),) = results.folders.items()
    stored = read_record(folder)
    arrivals = stored.requests["arrival_s"]
    due = [float(np.quantile([arrivals.min(), arrivals.max()], moment)) for moment in moments]
    views: list[SchedulerView] = []
    taken: list[Snapshot] = []

    def look(_: int) -> None:
        view = views[replica]
        while len(taken) < len(due) and view.now >= due[len(taken)]:
            taken.append(Snapshot(view.now, view.step, tree_table(view.cache.roots())))

    simulation = build_simulation(results.configs[name], build)
    policy = partial(_watched, simulation.policy, views)
    record = replace(simulation, policy=policy).run(look).record
    if any(not np.array_equal(record.requests[c], stored.requests[c]) for c in record.requests):
        raise ResultsError(f"{folder} was made by other code: this one does not repeat it")
    return taken


def build(config: Mapping[str, Any]) -> Any:
    """The object that a stored config's `_target_` and options describe."""
    return resolve_name(config["_target_"])(
        **{name: _built(value) for name, value in config.items() if name != "_target_"}
    )


def _built(value: Any) -> Any:
    if isinstance(value, Mapping):
        return build(value) if "_target_" in value else {k: _built(v) for k, v in value.items()}
    return [_built(item) for item in value] if isinstance(value, list) else value


def _watched(make: Any, views: list[SchedulerView]) -> SchedulingPolicy:
    """A new policy, whose view of its replica is also kept in `views`."""
    policy: SchedulingPolicy = make()
    start = policy.on_start

    def on_start(view: SchedulerView) -> None:
        views.append(view)
        start(view)

    # On the instance: the class, by which the scheduler knows the hooks in use, stays what it is.
    policy.on_start = on_start  # type: ignore[method-assign]
    return policy
