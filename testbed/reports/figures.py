"""Figures for papers: what a policy reached, beside what was possible."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import matplotlib
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from testbed.reports.comparison import ORACLE_NOTE, Comparison
from testbed.reports.style import STYLE, TEXT_WIDTH, colours, publish

BOUNDS: Mapping[str, tuple[str, tuple[float, tuple[float, ...]]]] = MappingProxyType(
    {
        "clairvoyant_bound": ("clairvoyant eviction, same order", (0, ())),
        "sharing_bound": ("sharing bound, any order and capacity", (0, (1.5, 1))),
    }
)
"""Summary column, legend and line style of the ticks over a bar."""
BAR_HEIGHT = 0.62


def plot_policies(comparison: Comparison, stem: str | Path) -> list[Path]:
    """Write hit rate and throughput by policy as STEM.pdf, STEM.png and the numbers as STEM.csv."""
    return publish(policy_figure(comparison), policy_table(comparison), stem)


def policy_table(comparison: Comparison) -> pd.DataFrame:
    """What the figure shows: label, seeds, each metric's mean and 95 % half width, if oracle."""
    rows = []
    for label, group in comparison.groups.items():
        row: dict[str, object] = {"label": label, "seeds": len(group)}
        for metric in ("hit_rate", *BOUNDS, "output_tokens_per_s"):
            row[metric], row[f"{metric}_half_width"] = comparison.interval(label, metric)
        row["oracle"] = label in comparison.oracles
        rows.append(row)
    return pd.DataFrame(rows)


def policy_figure(comparison: Comparison) -> Figure:
    """Two panels of bars, one row a label: hit rate with its two bounds, and output throughput."""
    labels = list(comparison.groups)
    with matplotlib.rc_context(dict(STYLE)):
        figure = Figure(figsize=(TEXT_WIDTH, 0.95 + 0.24 * len(labels)), layout="constrained")
        hit, throughput = figure.subplots(1, 2, sharey=True)
        _bars(hit, comparison, "hit_rate", decimals=3)
        _bars(throughput, comparison, "output_tokens_per_s", decimals=0)
        has_bounds = _bounds(hit, comparison)
        names = [label + comparison.mark(label) for label in labels]
        hit.set_yticks(range(len(labels)), names)
        hit.set_ylim(len(labels) - 0.4, -0.6)
        for axes in (hit, throughput):
            axes.set_xlim(left=0)
        hit.set_xlabel("Prefix-cache hit rate")
        throughput.set_xlabel("Output throughput (tokens/s)")
        if comparison.oracles:
            figure.supxlabel(ORACLE_NOTE, fontsize=STYLE["xtick.labelsize"])
        if has_bounds:
            figure.legend(loc="outside upper left", ncols=len(BOUNDS), handlelength=1.6)
    return figure


def _bars(axes: Axes, comparison: Comparison, metric: str, decimals: int) -> None:
    labels = list(comparison.groups)
    cells = [comparison.interval(label, metric) for label in labels]
    spread = [0.0 if math.isnan(cell.half_width) else cell.half_width for cell in cells]
    own = colours(labels)
    axes.barh(
        range(len(labels)),
        [cell.mean for cell in cells],
        height=BAR_HEIGHT,
        color=[own[label] for label in labels],
        xerr=spread if any(spread) else None,
        error_kw={"elinewidth": 0.8, "capsize": 2, "capthick": 0.8},
    )
    axes.grid(axis="x")
    for place, cell in enumerate(cells):
        axes.annotate(
            f"{cell.mean:,.{decimals}f}",
            xy=(1.0, place),
            xycoords=("axes fraction", "data"),
            xytext=(4, 0),
            textcoords="offset points",
            va="center_baseline",
            annotation_clip=False,
        )


def _bounds(axes: Axes, comparison: Comparison) -> bool:
    """Ticks across each bar; says whether there was any bound to show."""
    found = False
    for metric, (name, style) in BOUNDS.items():
        values = [comparison.interval(label, metric).mean for label in comparison.groups]
        places = [place for place, value in enumerate(values) if not math.isnan(value)]
        if places:
            axes.vlines(
                [values[place] for place in places],
                [place - 0.45 for place in places],
                [place + 0.45 for place in places],
                colors="black",
                linestyles=style,
                linewidth=1.2,
                label=name,
            )
            found = True
    return found
