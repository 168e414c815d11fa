"""Loads served on the engine and predicted in the simulator, each run in a folder.

The latency model is fitted to calibration passes on the same engine, made in turns with the runs;
the loads are not among what it is fitted to.
"""

from __future__ import annotations

from pathlib import Path

from experiments.benchmarks.fidelity import load_engine, paired_runs
from testbed.core.records import RunRecord
from testbed.metrics.loading import load
from testbed.metrics.results import processor, write_run
from testbed.metrics.stored import read_record
from testbed.metrics.summary import summarize
from testbed.reports.fidelity import plot_fidelity_runs

ROUNDS = 3
NUM_REQUESTS = 60
ENGINE, SIMULATOR = "engine", "simulator"


def record_engine_runs(folder: Path) -> None:
    """Calibrate, serve every load ROUNDS times, fit, predict.

    Writes FOLDER/engine/PLACE-LOAD/ROUND and FOLDER/simulator/PLACE-LOAD/ROUND, unless the latter
    are there. Raises PeerError without torch.
    """
    if (folder / SIMULATOR).is_dir():
        return
    engine = load_engine()
    facts = {"hardware": engine.hardware or processor(), "model": engine.model.name}
    runs = paired_runs(engine, ROUNDS, NUM_REQUESTS)
    # The engine's first: where the simulator's are, the others are whole.
    for backend, by_load in ((ENGINE, runs.measured), (SIMULATOR, runs.predicted)):
        for place, (name, records) in enumerate(by_load.items(), start=1):
            for number, record in enumerate(records):
                write_run(
                    folder / backend / f"{place}-{name}" / str(number),
                    config={**facts, "load": name, "round": number},
                    record=record,
                    summary=summarize(record),
                    seed=number,
                    wall_seconds=float(record.steps["end_s"].max()),
                    machine=facts,
                )


def plot_engine_runs(folder: Path, stem: Path) -> list[Path]:
    """Draw what record_engine_runs wrote; ResultsError where it is not."""
    records: dict[str, dict[str, list[RunRecord]]] = {ENGINE: {}, SIMULATOR: {}}
    for backend, by_load in records.items():
        for name, run in load(folder / backend).folders.items():
            case, _ = name.split("/")
            by_load.setdefault(case.partition("-")[2], []).append(read_record(run))
    return plot_fidelity_runs(records[ENGINE], records[SIMULATOR], stem)
