"""Loads served on the engine and predicted in the simulator, each run in a folder.

The latency model is fitted to calibration passes on the same engine, made in turns with the runs;
the loads are not among what it is fitted to.
"""

from __future__ import annotations

from pathlib import Path

from experiments.benchmarks.fidelity import load_engine
from experiments.progress import ProgressBar
from testbed.commands.engine_options import after
from testbed.commands.free_running import simulate_case
from testbed.core.records import RunRecord, joined
from testbed.metrics.loading import load
from testbed.metrics.results import processor, write_run
from testbed.metrics.stored import read_record
from testbed.metrics.summary import summarize
from testbed.reports.fidelity import plot_fidelity_runs
from testbed.sim.fitted import fit_latency

ROUNDS = 3
NUM_REQUESTS = 60
ENGINE, SIMULATOR = "engine", "simulator"


def record_engine_runs(folder: Path) -> None:
    """Calibrate, serve every load ROUNDS times, fit, predict: a minute and a half on two cores.

    Writes FOLDER/engine/PLACE-LOAD/ROUND and FOLDER/simulator/PLACE-LOAD, unless the latter are
    there. Raises PeerError without torch.
    """
    if (folder / SIMULATOR).is_dir():
        return
    engine = load_engine()
    from testbed.engine import calibration
    from testbed.engine.held_out import held_out_cases

    facts = {"hardware": engine.hardware or processor(), "model": engine.model.name}

    def write(run: Path, record: RunRecord, number: int) -> None:
        write_run(
            run,
            config={**facts, "load": run.relative_to(folder).parts[1], "round": number},
            record=record,
            summary=summarize(record),
            seed=number,
            wall_seconds=float(record.steps["end_s"].max()),
            machine=facts,
        )

    grid = calibration.CalibrationGrid()
    calibration.warm_up(engine, grid)
    calibrating = calibration.num_requests(grid)
    cases = held_out_cases(engine, grid, NUM_REQUESTS)
    passes = []
    with ProgressBar(ROUNDS * sum(calibrating + len(c.workload) for c in cases), "engine") as bar:
        done = 0
        runs: dict[Path, tuple[RunRecord, int]] = {}
        for number in range(ROUNDS):
            for place, case in enumerate(cases, start=1):
                passes.append(calibration.measure_steps(engine, grid, after(done, bar.show)))
                done += calibrating
                record = case.run(engine, after(done, bar.show)).record
                done += len(case.workload)
                runs[folder / ENGINE / f"{place}-{case.name}" / str(number)] = (record, number)
    latency = fit_latency(joined(passes))
    # Written at the end, so that what was broken off is begun anew, with a fit of its own.
    for run, (record, number) in runs.items():
        write(run, record, number)
    for place, case in enumerate(cases, start=1):
        predicted = simulate_case(case, latency)
        write(folder / SIMULATOR / f"{place}-{case.name}", predicted, 0)


def plot_engine_runs(folder: Path, stem: Path) -> list[Path]:
    """Draw what record_engine_runs wrote; ResultsError where it is not."""
    predicted, measured = {}, {}
    for name, run in load(folder / SIMULATOR).folders.items():
        case = name.partition("-")[2]
        predicted[case] = read_record(run)
        rounds = load(folder / ENGINE / name).folders.values()
        measured[case] = [read_record(one) for one in rounds]
    return plot_fidelity_runs(measured, predicted, stem)
