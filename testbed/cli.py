"""The `testbed` command: look at results, list policies."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from textwrap import shorten
from typing import get_args


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status, 2 after a user's mistake."""
    options = _parser().parse_args(arguments)
    try:
        print(options.command(options), end="")
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="testbed", description="Prefix caching in LLM serving.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    compare = commands.add_parser("compare", help="print the runs of a folder side by side")
    compare.add_argument("results", type=Path, help="folder of a run or of a sweep")
    compare.add_argument(
        "--by", action="append", default=[], metavar="OPTION", help="what makes a row; repeatable"
    )
    compare.add_argument("--baseline", metavar="ROW", help="also print the others less this row")
    compare.add_argument(
        "--figure", type=Path, metavar="STEM", help="also write STEM.pdf, STEM.png and STEM.csv"
    )
    compare.set_defaults(command=_compare)

    policy = commands.add_parser("policy", help="what there is to choose from")
    listing = policy.add_subparsers(required=True, metavar="COMMAND").add_parser(
        "list", help="list scheduling, eviction and routing policies"
    )
    listing.set_defaults(command=_list_policies)
    return parser


def _compare(options: argparse.Namespace) -> str:
    # Imported here, so that no command pays for the packages of another one.
    from testbed.metrics.loading import load
    from testbed.metrics.results import ResultsError
    from testbed.reports.comparison import compare
    from testbed.reports.table import comparison_table

    try:
        comparison = compare(load(options.results), options.by)
    except ResultsError as error:
        raise ValueError(" ".join(str(error).split())) from error
    table = comparison_table(comparison, options.baseline)
    if options.figure is not None:
        from testbed.reports.figures import plot_policies

        stem = options.figure
        stem = stem.with_suffix("") if stem.suffix in (".pdf", ".png", ".csv") else stem
        written = ", ".join(map(str, plot_policies(comparison, stem)))
        table += f"\nfigure: {written}\n"
    return table


def _list_policies(options: argparse.Namespace) -> str:
    from testbed.policies import registry

    lines = []
    for kind in get_args(registry.Kind):
        for name in registry.names(kind):
            purpose, _, _ = (registry.find(kind, name).__doc__ or "").partition("\n\n")
            lines.append(f"{kind:<10}  {name:<12}  {shorten(purpose, 74, placeholder=' ...')}\n")
    return "".join(lines)
