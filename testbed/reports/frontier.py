"""What fairness costs: hit rate and throughput against the largest gap in service."""

from __future__ import annotations

import math
from pathlib import Path

import matplotlib
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from testbed.reports.comparison import ORACLE_NOTE, Comparison
from testbed.reports.style import MARKERS, STYLE, TEXT_WIDTH, looks, publish

GAPS = {
    "max_service_gap": "Largest service gap (total tokens)",
    "max_extended_service_gap": "Largest service gap (extended tokens)",
}
GAINS = {"hit_rate": "Prefix-cache hit rate", "output_tokens_per_s": "Output throughput (tokens/s)"}


def plot_frontier(comparison: Comparison, stem: str | Path) -> list[Path]:
    """Write the frontier as STEM.pdf and STEM.png, and its points as STEM.csv."""
    return publish(frontier_figure(comparison), frontier_table(comparison), stem)


def frontier_table(comparison: Comparison) -> pd.DataFrame:
    """Label, seeds, and mean and 95 % half width of every gap and gain; oracles are marked."""
    rows = []
    for label, group in comparison.groups.items():
        row: dict[str, object] = {"label": label, "seeds": len(group)}
        for metric in (*GAPS, *GAINS):
            row[metric], row[f"{metric}_half_width"] = comparison.interval(label, metric)
        row["oracle"] = label in comparison.oracles
        rows.append(row)
    return pd.DataFrame(rows)


def frontier_figure(comparison: Comparison) -> Figure:
    """Gains by gaps, each panel with a point a label; up and to the left is better.

    A thin line joins the points of one policy, in their order.
    """
    with matplotlib.rc_context(dict(STYLE)):
        figure = Figure(figsize=(TEXT_WIDTH, 4.4), layout="constrained")
        panels = figure.subplots(len(GAINS), len(GAPS), sharey="row", sharex="col")
        for row, (gain, gain_name) in zip(panels, GAINS.items(), strict=True):
            row[0].set_ylabel(gain_name)
            for axes, gap in zip(row, GAPS, strict=True):
                _points(axes, comparison, gap, gain)
        for axes, gap_name in zip(panels[-1], GAPS.values(), strict=True):
            axes.set_xlabel(gap_name)
        if comparison.oracles:
            figure.supxlabel(ORACLE_NOTE, fontsize=STYLE["xtick.labelsize"])
        handles, names = panels[0][0].get_legend_handles_labels()
        title = ", ".join(option.rpartition(".")[2] for option in comparison.by)
        figure.legend(handles, names, loc="outside upper center", ncols=3, title=title)
    return figure


def _points(axes: Axes, comparison: Comparison, gap: str, gain: str) -> None:
    axes.grid()
    labels = list(comparison.groups)
    own = looks(labels)
    paths: dict[str, list[tuple[float, float]]] = {}
    for label in labels:
        # A policy's first setting has its own marker, the others those that follow it.
        points = paths.setdefault(label.split(" ")[0], [])
        marker = MARKERS[(MARKERS.index(own[label].marker) + len(points)) % len(MARKERS)]
        x, y = comparison.interval(label, gap), comparison.interval(label, gain)
        spread = [None if math.isnan(v.half_width) else v.half_width for v in (x, y)]
        axes.errorbar(
            x.mean,
            y.mean,
            xerr=spread[0],
            yerr=spread[1],
            fmt=marker,
            color=own[label].colour,
            markersize=5,
            elinewidth=0.8,
            label=_short(label) + comparison.mark(label),
        )
        points.append((x.mean, y.mean))
    for policy, points in paths.items():
        colour = own[next(label for label in labels if label.split(" ")[0] == policy)].colour
        axes.plot(*zip(*points, strict=True), color=colour, linewidth=0.6, alpha=0.6, zorder=1)
    if any(x > 0 for points in paths.values() for x, _ in points):
        axes.set_xscale("log")


def _short(label: str) -> str:
    """The label without the options that its policy does not have."""
    return " ".join(part for part in label.split(" ") if part != "-")
