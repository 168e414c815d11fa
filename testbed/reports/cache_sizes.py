"""Hit rate against cache size, by eviction policy, up to what clairvoyant eviction reaches."""

from __future__ import annotations

from pathlib import Path

import matplotlib
import pandas as pd
from matplotlib.figure import Figure

from testbed.metrics.loading import Results
from testbed.reports.curves import (
    count_axis,
    draw_curves,
    interval_table,
    legend_above,
    runs_table,
)
from testbed.reports.style import COLUMN_WIDTH, STYLE, publish

SIZE, POLICY = "cache.tokens", "eviction"


def plot_cache_sizes(results: Results, stem: str | Path) -> list[Path]:
    """Write the figure as STEM.pdf and STEM.png, and its points as STEM.csv."""
    table = cache_size_table(results)
    return publish(cache_size_figure(table), table, stem)


def cache_size_table(results: Results) -> pd.DataFrame:
    """A row for each eviction policy and cache size; the clairvoyant bound is of the served order.

    Raises ValueError for runs that do not say how large their cache is.
    """
    runs = runs_table(results, (SIZE, POLICY))
    return interval_table(
        runs, (POLICY, SIZE), ("hit_rate", "clairvoyant_bound", "sharing_bound", "evicted_tokens")
    )


def cache_size_figure(table: pd.DataFrame) -> Figure:
    """One column wide. Bounds are means over the policies, whose served orders differ a little."""
    with matplotlib.rc_context(dict(STYLE)):
        figure = Figure(figsize=(COLUMN_WIDTH, 2.6), layout="constrained")
        axes = figure.subplots()
        bounds = table.groupby(SIZE)[["clairvoyant_bound", "sharing_bound"]].mean()
        axes.plot(
            bounds.index,
            bounds["clairvoyant_bound"],
            color="black",
            linestyle=(0, (4, 1.5)),
            linewidth=1,
            label="clairvoyant bound",
        )
        draw_curves(axes, table, SIZE, "hit_rate", POLICY)
        sharing = float(bounds["sharing_bound"].mean())
        axes.axhline(sharing, color="black", linestyle=(0, (1, 1.5)), linewidth=1)
        axes.annotate(
            "sharing bound",
            (0.01, sharing),
            xycoords=("axes fraction", "data"),
            xytext=(0, 2),
            textcoords="offset points",
            fontsize=STYLE["legend.fontsize"],
        )
        count_axis(axes.xaxis, sorted(table[SIZE].unique()), unit=1000, suffix="k")
        axes.set_xlabel("KV cache (tokens)")
        axes.set_ylabel("Prefix-cache hit rate")
        legend_above(figure, axes, columns=4, oracle=bool(table["oracle"].any()))
    return figure
