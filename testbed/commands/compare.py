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
    # The figure first: a table is printed only if all that was asked for worked out.
    table = comparison_table(comparison, options.baseline)
    if options.figure is not None:
        from testbed.reports.figures import plot_policies

        stem = options.figure
        stem = stem.with_suffix("") if stem.suffix in (".pdf", ".png", ".csv") else stem
        written = ", ".join(map(str, plot_policies(comparison, stem)))
        table += f"\nfigure: {written}\n"
    print(table, end="")
    return 0
