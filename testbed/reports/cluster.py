"""Routers against each other as the fleet grows, under the same traffic."""

from __future__ import annotations

from pathlib import Path

import matplotlib
import pandas as pd
from matplotlib.figure import Figure

from testbed.metrics.cluster import load_imbalance
from testbed.metrics.loading import Results
from testbed.metrics.stored import read_record
from testbed.reports.curves import (
    count_axis,
    draw_curves,
    interval_table,
    legend_above,
    plain_log,
    runs_table,
)
from testbed.reports.style import STYLE, TEXT_WIDTH, publish

REPLICAS, POLICY = "replicas", "routing"
METRICS = ("hit_rate", "ttft_p50_s", "ttft_p99_s", "requests_per_s", "load_imbalance")


def plot_cluster(results: Results, stem: str | Path) -> list[Path]:
    """Write the figure as STEM.pdf and STEM.png, and its points as STEM.csv."""
    table = cluster_table(results)
    return publish(cluster_figure(table), table, stem)


def cluster_table(results: Results) -> pd.DataFrame:
    """A row for each router and number of replicas; load_imbalance as in testbed.metrics.cluster.

    Raises ValueError for runs that were not routed.
    """
    runs = runs_table(results, (REPLICAS, POLICY))
    imbalance = [load_imbalance(read_record(results.folders[run])) for run in runs["run"]]
    return interval_table(runs.assign(load_imbalance=imbalance), (POLICY, REPLICAS), METRICS)


def cluster_figure(table: pd.DataFrame) -> Figure:
    """Three panels over both columns: hit rate, 99th percentile of TTFT, imbalance."""
    with matplotlib.rc_context(dict(STYLE)):
        figure = Figure(figsize=(TEXT_WIDTH, 2.4), layout="constrained")
        hit, tail, imbalance = figure.subplots(1, 3)
        for axes, metric, name in (
            (hit, "hit_rate", "Prefix-cache hit rate"),
            (tail, "ttft_p99_s", "TTFT p99 (s)"),
            (imbalance, "load_imbalance", "Busiest replica / mean"),
        ):
            draw_curves(axes, table, REPLICAS, metric, POLICY)
            axes.set_ylabel(name)
            axes.set_xlabel("Replicas")
            count_axis(axes.xaxis, sorted(table[REPLICAS].unique()))
        plain_log(tail.yaxis, table["ttft_p99_s"])
        legend_above(figure, hit, columns=6, oracle=bool(table["oracle"].any()))
    return figure
