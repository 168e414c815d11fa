"""The tables and figures of SGLang's paper (arXiv 2312.07104), from sweeps of its experiments.

    python -m experiments.run -m experiment=sglang_hit_rates output=results/sglang_hit_rates
    python -m experiments.sglang hit_rates results/sglang_hit_rates

prints the table; the figure, and the table with 95 % confidence intervals, go into the folder.
docs/programs.md says what deviates and why.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import pandas as pd

from testbed.metrics.loading import Results, load
from testbed.metrics.results import ResultsError
from testbed.reports.curves import HALF_WIDTH
from testbed.reports.programs import (
    ablation_table,
    effect_table,
    hit_rate_table,
    plot_ablation,
    plot_effect,
    plot_hit_rates,
)

PUBLISHED = MappingProxyType(
    {
        "few_shot": (0.85, 0.85),
        "react": (0.94, 0.94),
        "generative_agents": (0.91, 0.91),
        "tree_of_thought": (0.98, 0.99),
        "skeleton_of_thought": (0.92, 0.95),
        "judge": (0.72, 0.73),
        "choice": (0.98, 0.98),
        "json": (0.88, 0.88),
        "chat": (0.50, 0.60),
        "chat_long": (0.57, 0.74),
        "rag_programs": (0.90, 0.93),
    }
)
"""Achieved and optimal hit rate by workload: bars of the paper's Figure 13, read off by eye."""
ARMS = ("no_cache", "table_256", "table_16", "fcfs", "random", "no_hint", "full")


class Report(NamedTuple):
    """A table of a sweep's runs, and how it is drawn."""

    table: Callable[[Results], pd.DataFrame]
    plot: Callable[[pd.DataFrame, Path], list[Path]]


REPORTS = MappingProxyType(
    {
        "hit_rates": Report(lambda runs: hit_rate_table(runs, PUBLISHED), plot_hit_rates),
        "ablation": Report(lambda runs: ablation_table(runs, ARMS), plot_ablation),
        "effect": Report(lambda runs: effect_table(runs, "workload.unshared"), plot_effect),
    }
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one table and write its figure; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m experiments.sglang")
    parser.add_argument("report", choices=tuple(REPORTS))
    parser.add_argument("results", type=Path, help="folder of the experiment's sweep")
    options = parser.parse_args(arguments)
    report = REPORTS[options.report]
    try:
        table = report.table(load(options.results))
        written = report.plot(table, options.results / options.report)
    except (ResultsError, ValueError, OSError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    shown = [name for name in table if not name.endswith(HALF_WIDTH) and name != "oracle"]
    print(table[shown].to_string(index=False, float_format="{:.3f}".format, na_rep="-"))
    if options.report == "hit_rates":
        print(f"mean part of the optimum: {table['of_optimum'].mean():.3f}")
    print(f"figure: {', '.join(map(str, written))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
