"""Latency and goodput against the rate of requests."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import matplotlib
import pandas as pd
from matplotlib.figure import Figure

from testbed.metrics.loading import Results
from testbed.metrics.stored import read_record
from testbed.metrics.summary import goodput
from testbed.reports.curves import draw_curves, interval_table, legend_above, plain_log, runs_table
from testbed.reports.style import STYLE, TEXT_WIDTH, publish

RATE, POLICY = "arrivals.rate", "scheduler"
METRICS = ("ttft_p50_s", "ttft_p99_s", "tpot_p99_s", "hit_rate", "requests_per_s", "goodput_per_s")


class Slo(NamedTuple):
    """What a request must meet to count: seconds to its first token, and per later token."""

    ttft_s: float = 1.0
    tpot_s: float = 0.1


def plot_load(results: Results, stem: str | Path, slo: Slo = Slo()) -> list[Path]:  # noqa: B008
    """Write the figure as STEM.pdf and STEM.png, and its points as STEM.csv."""
    table = load_table(results, slo)
    return publish(load_figure(table, slo), table, stem)


def load_table(results: Results, slo: Slo) -> pd.DataFrame:
    """A row for each scheduler and rate; goodput_per_s: requests per second that met the SLO.

    Raises ValueError for runs without a rate of arrivals.
    """
    runs = runs_table(results, (RATE, POLICY))
    met = [goodput(read_record(results.folders[run]), *slo) for run in runs["run"]]
    return interval_table(runs.assign(goodput_per_s=met), (POLICY, RATE), METRICS)


def load_figure(table: pd.DataFrame, slo: Slo) -> Figure:
    """Three panels over both columns: median and 99th percentile of TTFT, goodput."""
    with matplotlib.rc_context(dict(STYLE)):
        figure = Figure(figsize=(TEXT_WIDTH, 2.3), layout="constrained")
        median, tail, good = figure.subplots(1, 3)
        for axes, metric, name in (
            (median, "ttft_p50_s", "TTFT p50 (s)"),
            (tail, "ttft_p99_s", "TTFT p99 (s)"),
        ):
            draw_curves(axes, table, RATE, metric, POLICY)
            plain_log(axes.yaxis, table[metric])
            axes.set_ylabel(name)
            axes.axhline(slo.ttft_s, color="black", linestyle=(0, (1, 1.5)), linewidth=0.8)
        rates = sorted(table[RATE].unique())
        good.plot(rates, rates, color="black", linestyle=(0, (1, 1.5)), linewidth=0.8)
        draw_curves(good, table, RATE, "goodput_per_s", POLICY)
        good.set_ylim(bottom=0)
        met = f"TTFT ≤ {slo.ttft_s:g} s, TPOT ≤ {1e3 * slo.tpot_s:g} ms"
        good.set_ylabel(f"Goodput (requests/s),\n{met}")
        for axes in (median, tail, good):
            axes.set_xlabel("Request rate (1/s)")
        legend_above(figure, median, columns=8, oracle=bool(table["oracle"].any()))
    return figure
