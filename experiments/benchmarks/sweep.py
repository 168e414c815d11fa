"""What a sweep costs besides its simulations, and what is left of one that is killed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from experiments.benchmarks.bars import Bar, Benchmark, Reached
from experiments.benchmarks.peer_venv import CHECKOUT
from testbed.metrics.results import COMPLETE

RUNS = 200
WORKERS = 2
KILLS = 5
SWEEP = (
    "scheduler=fcfs,lpm",
    f"seed=range({RUNS // 2})",
    "workload.num_requests=50",
    "hydra/launcher=joblib",
    f"hydra.launcher.n_jobs={WORKERS}",
)
KILL_SEED = 0
EARLIEST, LATEST = 0.1, 0.4
"""When a sweep is killed, in parts of an unbroken one's time."""

OVERHEAD = Bar("wall time besides the simulations, a run", "<", 0.3, "s")
EQUAL = Bar(f"files that differ after {KILLS} kills", "==", 0, "files")
REPEATED = Bar("finished runs that were written again", "==", 0, "runs")


def run() -> list[Reached]:
    """The same sweep twice: unbroken, and killed at random."""
    with tempfile.TemporaryDirectory() as scratch:
        unbroken, killed = Path(scratch) / "unbroken", Path(scratch) / "killed"
        began = time.perf_counter()
        _finish(unbroken)
        wall_s = time.perf_counter() - began
        simulated_s = _simulated_s(unbroken)
        print(
            f"{RUNS} runs in {wall_s:.1f} s with {WORKERS} workers; "
            f"{simulated_s:.1f} s of simulations in them, {simulated_s / WORKERS:.1f} s each"
        )
        repeated = _finish_despite_kills(killed, wall_s)
        differing = _differing(unbroken, killed)
    return [
        OVERHEAD.reached((wall_s - simulated_s / WORKERS) / RUNS),
        EQUAL.reached(differing),
        REPEATED.reached(repeated),
    ]


def _start(output: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "experiments.run", "-m", *SWEEP, f"output={output}"]
    # A group of its own: a kill takes the workers along, and spares this process.
    return subprocess.Popen(
        command,
        cwd=CHECKOUT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )


def _finish(output: Path) -> None:
    process = _start(output)
    _, errors = process.communicate()
    if process.returncode:
        raise RuntimeError(f"the sweep ended with status {process.returncode}:\n{errors}")


def _finish_despite_kills(output: Path, wall_s: float) -> int:
    """Kill the sweep at random, then let it end; how many finished runs were written again."""
    rng = random.Random(KILL_SEED)
    finished: dict[str, int] = {}
    repeated = 0
    for _ in range(KILLS):
        process = _start(output)
        time.sleep(rng.uniform(EARLIEST, LATEST) * wall_s)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        now = _finished(output)
        repeated += _lost_or_written_again(finished, now)
        finished = now
        print(f"killed with {len(finished)} of {RUNS} runs finished")
    _finish(output)
    return repeated + _lost_or_written_again(finished, _finished(output))


def _lost_or_written_again(before: dict[str, int], now: dict[str, int]) -> int:
    return sum(now.get(name) != written for name, written in before.items())


def _finished(output: Path) -> dict[str, int]:
    """When each complete run was written, in nanoseconds."""
    return {
        marker.parent.name: (marker.parent / "manifest.json").stat().st_mtime_ns
        for marker in output.glob(f"*/{COMPLETE}")
    }


def _simulated_s(output: Path) -> float:
    manifests = (json.loads(path.read_text()) for path in output.glob("*/manifest.json"))
    return sum(float(manifest["wall_seconds"]) for manifest in manifests)


def _differing(one: Path, other: Path) -> int:
    """Files that only one folder has or that differ; manifests, which hold times, may differ."""
    found = [
        {path.relative_to(folder): path for path in folder.rglob("*") if path.is_file()}
        for folder in (one, other)
    ]
    common = found[0].keys() & found[1].keys()
    return len(found[0].keys() ^ found[1].keys()) + sum(
        found[0][name].read_bytes() != found[1][name].read_bytes()
        for name in common
        if name.name != "manifest.json"
    )


BENCHMARK = Benchmark(
    "sweep",
    f"what do Hydra and we add to a run of a sweep of {RUNS}, and does it survive kill -9?",
    (OVERHEAD, EQUAL, REPEATED),
    run,
)
