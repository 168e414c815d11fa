"""`testbed compare`: the runs of a folder side by side."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def add(commands: Any) -> None:
    """Add the command's parser."""
    parser = commands.add_parser("compare", help="print the runs of a folder side by side")
    parser.add_argument("results", type=Path, help="folder of a run or of a sweep")
    parser.add_argument(
        "--by", action="append", default=[], metavar="OPTION", help="what makes a row; repeatable"
    )
    parser.add_argument("--baseline", metavar="ROW", help="also print the others less this row")
    parser.add_argument(
        "--figure", type=Path, metavar="STEM", help="also write STEM.pdf, STEM.png and STEM.csv"
    )
    parser.add_argument(
        "--frontier", type=Path, metavar="STEM", help="likewise, hit rate against service gaps"
    )
    parser.set_defaults(command=_compare)


def _compare(options: argparse.Namespace) -> int:
    from testbed.metrics.loading import load
    from testbed.metrics.results import ResultsError
    from testbed.reports.comparison import compare
    from testbed.reports.table import comparison_table

    try:
        comparison = compare(load(options.results), options.by)
    except ResultsError as error:
        raise ValueError(" ".join(str(error).split())) from error
    # The figures first: a table is printed only if all that was asked for worked out.
    table = comparison_table(comparison, options.baseline)
    written: list[Path] = []
    if options.figure is not None:
        from testbed.reports.figures import plot_policies

        written += plot_policies(comparison, _stem(options.figure))
    if options.frontier is not None:
        from testbed.reports.frontier import plot_frontier

        written += plot_frontier(comparison, _stem(options.frontier))
    if written:
        table += f"\nfigure: {', '.join(map(str, written))}\n"
    print(table, end="")
    return 0


def _stem(path: Path) -> Path:
    return path.with_suffix("") if path.suffix in (".pdf", ".png", ".csv") else path
