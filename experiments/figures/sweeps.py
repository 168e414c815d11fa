"""Runs the sweeps that a figure is drawn from, several at a time; what is complete is kept."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
EXPERIMENTS = ROOT / "experiments" / "conf" / "experiment"
ERROR_LINES = 5


class Sweep(NamedTuple):
    """An experiment of experiments/conf/experiment, and the folder that its runs go to."""

    experiment: str
    folder: Path


def full_variant(experiment: str) -> str:
    """Its variant at the size of a paper, EXPERIMENT_full, or itself if it has none."""
    full = f"{experiment}_full"
    return full if (EXPERIMENTS / f"{full}.yaml").is_file() else experiment


def run_sweeps(
    sweeps: Sequence[Sweep], workers: int, progress: Callable[[int], None]
) -> dict[Sweep, str]:
    """Carry out the sweeps, `workers` at a time; returns what went wrong in those that failed.

    progress: hears how many are over.
    """
    failures = {}
    with ThreadPoolExecutor(workers) as pool:
        running = {pool.submit(_run, sweep): sweep for sweep in sweeps}
        for over, future in enumerate(as_completed(running), start=1):
            if error := future.result():
                failures[running[future]] = error
            progress(over)
    return failures


def _run(sweep: Sweep) -> str:
    """The last lines of its errors if it fails, else nothing."""
    # One process a sweep: Hydra keeps state that two sweeps cannot share.
    command = [
        sys.executable,
        "-m",
        "experiments.run",
        "-m",
        f"experiment={sweep.experiment}",
        f"output={sweep.folder.resolve()}",
    ]
    made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if not made.returncode:
        return ""
    last = "\n".join(made.stderr.strip().splitlines()[-ERROR_LINES:])
    return f"experiment={sweep.experiment}: exit status {made.returncode}\n{last}"
