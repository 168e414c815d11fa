"""How long `testbed --help` takes."""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import sysconfig
import time
from collections.abc import Sequence

from experiments.benchmarks.bars import Bar, Benchmark, Reached

ATTEMPTS = 15
BAR = Bar("testbed --help", "<", 0.3, "s")


def run() -> list[Reached]:
    """The whole process, in turn with one of a Python that does nothing."""
    testbed = shutil.which("testbed", path=sysconfig.get_path("scripts"))
    if testbed is None:
        raise FileNotFoundError("this Python has no `testbed` command: pip install -e . makes one")
    helping, nothing = (testbed, "--help"), (sys.executable, "-c", "pass")
    times: dict[Sequence[str], list[float]] = {helping: [], nothing: []}
    for _ in range(ATTEMPTS):
        for command, seconds in times.items():
            seconds.append(_seconds(command))
    median = statistics.median(times[helping])
    print(
        f"median of {ATTEMPTS}: testbed --help {median:.3f} s, "
        f"python -c pass {statistics.median(times[nothing]):.3f} s"
    )
    return [BAR.reached(median)]


def _seconds(command: Sequence[str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - began


BENCHMARK = Benchmark("startup", "how long does `testbed --help` take?", (BAR,), run)
