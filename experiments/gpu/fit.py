"""Latency models fitted to a card's measured steps, for simulations on a machine without it.

    python -m experiments.gpu.fit results/CARD

reads steps.json and writes MODEL.latency.json beside it, as `testbed calibrate` would; decode steps
count as captured ones.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from testbed.commands.calibrate import residual_table
from testbed.core.batch import BatchShape
from testbed.core.records import Columns
from testbed.sim.fitted import fit_latency, residuals, write_latency


def measured_steps(rows: list[dict[str, Any]]) -> Columns:
    """The seconds and the shape of every single step, by MEASURED_COLUMNS."""
    each = [row.get("graph_seconds_each", row["seconds_each"]) for row in rows]
    repeats = [len(seconds) for seconds in each]
    columns: Columns = {"seconds": np.concatenate([np.asarray(s, dtype=np.float64) for s in each])}
    for name in BatchShape._fields:
        columns[name] = np.repeat(np.array([row[name] for row in rows], dtype=np.int64), repeats)
    return columns


def main(arguments: list[str]) -> int:
    """Fit every model of steps.json; print how well the fit reproduces the steps."""
    parser = argparse.ArgumentParser(prog="experiments.gpu.fit")
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args(arguments).folder
    steps = folder / "steps.json"
    if not steps.is_file():
        print(f"{folder}: no steps.json in it", file=sys.stderr)
        return 1
    record = json.loads(steps.read_text(encoding="utf-8"))
    for model, part in record.get("models", {}).items():
        measured = measured_steps(part["rows"])
        try:
            latency = fit_latency(measured)
        except ValueError as error:
            print(f"{model}: {error}", file=sys.stderr)
            return 1
        found = residuals(latency, measured)
        facts = {
            "model": model,
            "hardware": record["card"],
            "dtype": part["dtype"],
            "residuals": {kind: asdict(residual) for kind, residual in found.items()},
        }
        file = folder / f"{model}.latency.json"
        write_latency(file, latency, facts)
        print(f"{model} on {record['card']}: {file}\n{residual_table(found)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
