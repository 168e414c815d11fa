"""Draws the figures of a paper, once the runs that they are drawn from are there.

python -m experiments.figures                  lists them
python -m experiments.figures NAME             runs what is missing of its sweep, then draws it
python -m experiments.figures all              likewise, every one of them
python -m experiments.figures NAME RESULTS     draws it from the runs in a folder
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from experiments.benchmarks.peer_venv import PeerError
from experiments.figures.catalogue import FIGURES, Figure
from experiments.figures.sweeps import Sweep, full_variant, run_sweeps
from experiments.progress import ProgressBar
from testbed.metrics.results import ResultsError

BY_NAME = {figure.name: figure for figure in FIGURES}
FOLDER = Path("results/figures")
ALL = "all"


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0, 1 if a run failed, 2 for what cannot be drawn or understood."""
    options = _parser().parse_args(arguments)
    if options.name is None:
        width = max(map(len, BY_NAME))
        for figure in FIGURES:
            print(f"{figure.name:<{width}}  {figure.question}")
        return 0
    if options.name not in (ALL, *BY_NAME):
        print(
            f"error: {options.name}: one of {ALL}, {', '.join(BY_NAME)} is needed", file=sys.stderr
        )
        return 2
    if options.results is not None and options.scale is not None:
        print("error: --scale: nothing is run where RESULTS is given", file=sys.stderr)
        return 2
    chosen = FIGURES if options.name == ALL else (BY_NAME[options.name],)
    results = options.results or FOLDER / (options.scale or "small")
    failed: set[Path] = set()
    if options.results is None:
        failed = _run_missing(chosen, results, options.scale == "full")
    statuses = [1] if failed else [0]
    for figure in chosen:
        own = results / figure.name
        if own in failed:
            continue
        if options.results is None:
            record = figure.record
        else:
            record = None
            if not own.is_dir() and options.name != ALL:
                own = results
            elif not own.is_dir() and figure.record is not None:
                _leave_out(figure)
                continue
        statuses.append(_draw(figure, record, own, (options.output or results) / figure.name))
    return max(statuses)


def _draw(figure: Figure, record: Callable[[Path], None] | None, folder: Path, stem: Path) -> int:
    try:
        if record is not None:
            record(folder)
        written = figure.draw(folder, stem)
    except PeerError:
        _leave_out(figure)
        return 0
    except (ResultsError, ValueError, OSError) as error:
        print(f"error: {figure.name}: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    print(f"{figure.name}: {', '.join(map(str, written))}")
    return 0


def _leave_out(figure: Figure) -> None:
    print(
        f"{figure.name}: left out: its runs need torch. They are made, and it is drawn, by\n"
        f"    .venv-engine/bin/python -m experiments.figures {figure.name}\n"
        "once `make demo-engine` has made that environment",
        file=sys.stderr,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.figures", description="Draw the figures of a paper."
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help=f"a figure, or {ALL}")
    parser.add_argument(
        "results",
        nargs="?",
        type=Path,
        metavar="RESULTS",
        help=f"draw from the runs in this folder (for {ALL}: in its folders by figure) and run "
        f"nothing; by default what is missing is run in {FOLDER}/SCALE",
    )
    parser.add_argument("--output", type=Path, metavar="DIR", help="where the figures go")
    parser.add_argument(
        "--scale", choices=("small", "full"), help="small (the default): all within ten minutes"
    )
    return parser


def _run_missing(chosen: Sequence[Figure], results: Path, full: bool) -> set[Path]:
    """Carry out the figures' sweeps; returns the folders of those that failed, and says why."""
    sweeps = [
        Sweep(full_variant(experiment) if full else experiment, results / figure.name)
        for figure in chosen
        for experiment in figure.experiments
    ]
    if not sweeps:
        return set()
    with ProgressBar(len(sweeps), "figures", "sweeps") as bar:
        failures = run_sweeps(sweeps, min(os.cpu_count() or 1, len(sweeps)), bar.show)
    for reason in failures.values():
        print(f"error: {reason}", file=sys.stderr)
    return {sweep.folder for sweep in failures}


if __name__ == "__main__":
    sys.exit(main())
