"""What fairness costs: hit rate and throughput against the largest gap in service."""

from __future__ import annotations

import math
from pathlib import Path

import matplotlib
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from testbed.reports.comparison import ORACLE_NOTE, Comparison
from testbed.reports.style import STYLE, colours, save, write_whole

GAPS = {
    "max_service_gap": "Largest service gap (total tokens)",
    "max_extended_service_gap": "Largest service gap (extended tokens)",
}
GAINS = {"hit_rate": "Prefix-cache hit rate", "output_tokens_per_s": "Output throughput (tokens/s)"}
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")


def plot_frontier(comparison: Comparison, stem: str | Path) -> list[Path]:
    """Write the frontier as STEM.pdf and STEM.png, and its points as STEM.csv."""
    table = frontier_table(comparison).to_csv(index=False, float_format="%.6g", lineterminator="\n")
    return [
        *save(frontier_figure(comparison), stem),
        write_whole(Path(f"{stem}.csv"), table.encode()),
    ]


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
    """Gains by gaps, each panel with a point a label; up and to the left is better."""
    with matplotlib.rc_context(dict(STYLE)):
        figure = Figure(figsize=(7.0, 4.8), layout="constrained")
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
        figure.legend(handles, names, loc="outside upper center", ncols=3)
    return figure


def _points(axes: Axes, comparison: Comparison, gap: str, gain: str) -> None:
    axes.grid()
    labels = list(comparison.groups)
    own = colours(labels)
    positive = False
    for place, label in enumerate(labels):
        x, y = comparison.interval(label, gap), comparison.interval(label, gain)
        spread = [None if math.isnan(v.half_width) else v.half_width for v in (x, y)]
        axes.errorbar(
            x.mean,
            y.mean,
            xerr=spread[0],
            yerr=spread[1],
            fmt=MARKERS[place % len(MARKERS)],
            color=own[label],
            markersize=5,
            elinewidth=0.8,
            label=label + comparison.mark(label),
        )
        positive = positive or x.mean > 0
    if positive:
        axes.set_xscale("log")
