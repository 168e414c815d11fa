"""Everything that needs a GPU, in one command of about ten minutes.

    PYTHONPATH=.:kernels python -m experiments.gpu [--output results] [--parts NAME ...] [--smoke]

Needs torch, triton, transformers and numpy; no network, no simulator. Each part writes
OUTPUT/<card>/<part>.json after each thing that it has measured, so that a run that is cut short
leaves what it had; a part that fails, hangs or breaks the device keeps its own and does not stop
the others. `runs` writes engine runs too: experiments.gpu.recorded replays them where the simulator
is installed. Last comes the table of experiments.gpu.report.

The exit status is 1 if a result is wrong or a part failed, else 0. Without a GPU it says so and
ends with 0. --smoke runs the code of every part at tiny sizes on the CPU, kernels in Triton's
interpreter, and writes to OUTPUT/smoke: its figures mean nothing.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
from collections.abc import Callable
from math import inf
from pathlib import Path
from time import perf_counter
from typing import Any

from experiments.gpu.parts import PARTS, run_parts

OVERTIME = 90.0
"""Seconds past its time after which a part is taken to hang."""


def supervise(
    run: Callable[..., None], names: list[str], limits: list[float], *arguments: Any
) -> int:
    """Call run(names, *arguments, begun) in a process of its own, where begun is a shared integer
    that counts the parts that have begun. When the process dies, or is ended because a part takes
    longer than its limit in seconds, another one goes on behind that part. The exit status."""
    context = multiprocessing.get_context("spawn")
    status = 0
    while True:
        begun = context.RawValue("i", 0)
        process = context.Process(target=run, args=(names, *arguments, begun))
        process.start()
        place, since = 0, perf_counter()
        while process.is_alive():
            process.join(0.2)
            if begun.value > place:
                place, since = begun.value, perf_counter()
            if place and perf_counter() - since > limits[place - 1]:
                process.kill()
        if process.exitcode in (0, 1) or not place:
            return status or int(process.exitcode != 0)
        print(f"{names[place - 1]} ended its process: {process.exitcode}", flush=True)
        status = 1
        names, limits = names[place:], limits[place:]


def main(arguments: list[str]) -> int:
    """Run the parts that the arguments name, in order."""
    parser = argparse.ArgumentParser(prog="experiments.gpu")
    parser.add_argument("--output", type=Path, default=Path("results"))
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--smoke", action="store_true", help="tiny sizes on the CPU")
    options = parser.parse_args(arguments)
    if options.smoke:
        # Read when Triton is imported, which no import has done yet.
        os.environ["TRITON_INTERPRET"] = "1"
    # A process that is killed must not take its last lines with it.
    os.environ["PYTHONUNBUFFERED"] = "1"
    limits = [inf if options.smoke else PARTS[name] + OVERTIME for name in options.parts]
    return supervise(run_parts, options.parts, limits, options.output, options.smoke)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
