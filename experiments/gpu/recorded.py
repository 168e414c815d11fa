"""Engine runs in one file each, for a machine that has neither pyarrow nor the simulator.

    python -m experiments.gpu.recorded FOLDER [FOLDER ...]

turns every NAME.run.npz in the folders into a run folder NAME beside it, which `testbed.load`
reads, and replays it in the simulator: the exit status is 1 if a decision differs.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from testbed.core.config import CacheConfig, SchedulerConfig
from testbed.core.records import (
    ADDED_COLUMNS,
    DECISION_COLUMNS,
    MEASURED_COLUMNS,
    REQUEST_COLUMNS,
    STEP_COLUMNS,
    Column,
    Columns,
    RunRecord,
)

SUFFIX = ".run.npz"
TABLES: tuple[tuple[str, Mapping[str, Column]], ...] = (
    ("requests", REQUEST_COLUMNS),
    ("steps", STEP_COLUMNS),
    ("decisions", DECISION_COLUMNS),
    ("added", ADDED_COLUMNS),
    ("measured", MEASURED_COLUMNS),
)


class SavedRun(NamedTuple):
    """config: what the run was of. machine: what it ran on. See EngineRun for the rest."""

    config: dict[str, Any]
    machine: dict[str, Any]
    record: RunRecord
    added: Columns
    measured: Columns


def save(path: Path, saved: SavedRun) -> None:
    """Write one file, under another name first. Rows of tokens lie back to back."""
    assert saved.record.decisions is not None
    tables = {
        "requests": saved.record.requests,
        "steps": saved.record.steps,
        "decisions": saved.record.decisions,
        "added": saved.added,
        "measured": saved.measured,
    }
    arrays: dict[str, Any] = {
        "about": json.dumps([saved.config, saved.machine, saved.record.counters])
    }
    for table, schema in TABLES:
        for name, column in schema.items():
            key, values = f"{table}/{name}", tables[table][name]
            if column.dtype == "tokens":
                arrays[f"{key}/ends"] = np.cumsum([len(row) for row in values], dtype=np.int64)
                values = np.concatenate([np.zeros(0, dtype=np.int32), *values])
            elif column.dtype == "str":
                values = values.astype(np.str_)
            arrays[key] = values
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as file:
        np.savez_compressed(file, **arrays)
    partial.rename(path)


def read(path: Path) -> SavedRun:
    """What `save` wrote."""
    with np.load(path, allow_pickle=False) as file:
        config, machine, counters = json.loads(str(file["about"]))
        tables = {table: _read_table(file, table, schema) for table, schema in TABLES}
    record = RunRecord(tables["requests"], tables["steps"], tables["decisions"], counters)
    return SavedRun(config, machine, record, tables["added"], tables["measured"])


def _read_table(file: Any, table: str, schema: Mapping[str, Column]) -> Columns:
    columns: Columns = {}
    for name, column in schema.items():
        values = file[f"{table}/{name}"]
        if column.dtype == "tokens":
            rows = np.split(values, file[f"{table}/{name}/ends"][:-1])
            values = np.fromiter(rows, dtype=object, count=len(rows))
        elif column.dtype == "str":
            values = values.astype(object)
        columns[name] = values
    return columns


def config_of(
    model: str,
    dtype: str,
    cache: CacheConfig,
    scheduler: SchedulerConfig,
    policy: str,
    eviction: str,
    workload: Mapping[str, Any],
) -> dict[str, Any]:
    """What a replay needs to know, and which workload it was."""
    return {
        "model": model,
        "dtype": dtype,
        "cache": asdict(cache),
        "scheduler": asdict(scheduler),
        "policy": policy,
        "eviction": eviction,
        "workload": dict(workload),
    }


def differing_decision(saved: SavedRun) -> str | None:
    """The first decision that the simulator takes otherwise, both sides; None if there is none."""
    from testbed.policies import registry
    from testbed.sim.recorded import replay

    again = replay(
        saved.added,
        saved.measured,
        cache=CacheConfig(**saved.config["cache"]),
        scheduler=SchedulerConfig(**saved.config["scheduler"]),
        policy=registry.scheduling(saved.config["policy"]),
        eviction=registry.eviction(saved.config["eviction"]),
    )
    recorded, replayed = saved.record.decisions, again.log.columns()
    assert recorded is not None
    sides = [list(zip(*(side[name].tolist() for name in DECISION_COLUMNS), strict=True))
             for side in (recorded, replayed)]  # fmt: skip
    for index, (left, right) in enumerate(zip(*sides, strict=False)):
        if left != right:
            return f"decision {index}: engine {left}, simulator {right}"
    if len(sides[0]) != len(sides[1]):
        return f"{len(sides[0])} decisions of the engine, {len(sides[1])} of the simulator"
    return again.diverged


def convert(path: Path) -> Path:
    """Write the run folder of one file beside it."""
    from testbed.metrics.results import write_run
    from testbed.metrics.summary import summarize

    saved = read(path)
    folder = path.with_name(path.name.removesuffix(SUFFIX))
    write_run(
        folder,
        record=saved.record,
        summary=summarize(saved.record),
        config=saved.config,
        seed=saved.config["workload"]["seed"],
        wall_seconds=float(saved.measured["seconds"].sum()),
        added=saved.added,
        measured=saved.measured,
        machine=saved.machine,
    )
    return folder


def main(arguments: list[str]) -> int:
    """Convert and replay every file in the folders."""
    parser = argparse.ArgumentParser(prog="experiments.gpu.recorded")
    parser.add_argument("folders", nargs="+", type=Path)
    paths = [
        path
        for folder in parser.parse_args(arguments).folders
        for path in sorted(folder.glob(f"*{SUFFIX}"))
    ]
    if not paths:
        print(f"No *{SUFFIX} in the folders.")
        return 1
    differing = 0
    for path in paths:
        difference = differing_decision(read(path))
        differing += difference is not None
        print(f"{convert(path)}: {difference or 'every decision is the same in the simulator'}")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
