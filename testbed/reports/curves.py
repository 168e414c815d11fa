"""Means over seeds as curves: the table of a sweep, and lines with intervals drawn from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.axis import Axis, XAxis
from matplotlib.figure import Figure
from matplotlib.ticker import StrMethodFormatter

from testbed.metrics.intervals import mean_interval
from testbed.metrics.loading import Results
from testbed.reports.comparison import ORACLE_NOTE
from testbed.reports.style import STYLE, Look, looks

HALF_WIDTH = "_half_width"
"""What a metric's name ends in where its 95 % confidence interval is meant."""


def runs_table(results: Results, options: Sequence[str]) -> pd.DataFrame:
    """One row a run: every option by its dotted name, every column of the summary, and `oracle`.

    Raises ValueError if one of `options`, which the figure needs, is missing.
    """
    frame = results.config.assign(**dict(results.summary.items()))
    for option in options:
        if option not in frame or frame[option].isna().any():
            raise ValueError(f"{option}: no such option in these runs, and the figure needs it")
    return frame.assign(oracle=frame["run"].isin(results.oracle_runs))


def interval_table(runs: pd.DataFrame, by: Sequence[str], metrics: Sequence[str]) -> pd.DataFrame:
    """One row for each combination of the options `by`, in order.

    seeds; each metric's mean, and its 95 % half width under METRIC_half_width; oracle. Raises
    ValueError if two runs of a row have the same seed.
    """
    rows = []
    for values, group in runs.groupby(list(by), sort=True):
        named = dict(zip(by, values, strict=True))
        twice = group[group["seed"].duplicated(keep=False)]
        if len(twice):
            given = ", ".join(f"{name}={value}" for name, value in named.items())
            raise ValueError(
                f"runs {', '.join(twice['run'])}: {given} with one seed; other options tell them "
                "apart, for which the figure has no room"
            )
        row: dict[str, Any] = {**named, "seeds": len(group)}
        for metric in metrics:
            row[metric], row[f"{metric}{HALF_WIDTH}"] = mean_interval(group[metric].to_numpy())
        rows.append({**row, "oracle": bool(group["oracle"].any())})
    return pd.DataFrame(rows)


def draw_curves(
    axes: Axes, table: pd.DataFrame, x: str, metric: str, by: str, scale: float = 1.0
) -> None:
    """A line for each value of `by`: scale * metric over x, with 95 % intervals where known."""
    for label, look in label_looks(table, by).items():
        line = table[table[by] == label].sort_values(x)
        axes.plot(
            line[x],
            scale * line[metric],
            color=look.colour,
            marker=look.marker,
            label=marked(table, by, label),
        )
        axes.errorbar(
            line[x],
            scale * line[metric],
            yerr=scale * line[f"{metric}{HALF_WIDTH}"].fillna(0.0),
            fmt="none",
            ecolor=look.colour,
            elinewidth=0.8,
        )
    axes.grid(axis="y")


def legend_above(figure: Figure, axes: Axes, columns: int, oracle: bool) -> None:
    """The legend of the curves over all panels, and the oracle's dagger explained below them."""
    handles, names = axes.get_legend_handles_labels()
    figure.legend(
        handles,
        names,
        loc="outside upper center",
        ncols=columns,
        handlelength=2,
        columnspacing=1.2,
        borderpad=0,
    )
    if oracle:
        figure.supxlabel(ORACLE_NOTE, fontsize=STYLE["xtick.labelsize"])


def label_looks(table: pd.DataFrame, by: str) -> dict[str, Look]:
    """The look of every value of `by`."""
    return looks(list(dict.fromkeys(table[by].astype(str))))


def marked(table: pd.DataFrame, by: str, label: str) -> str:
    """The label, with a dagger if it is an oracle's."""
    return f"{label}†" if table.loc[table[by] == label, "oracle"].any() else label


def count_axis(axis: Axis, values: Sequence[float], unit: float = 1.0, suffix: str = "") -> None:
    """A logarithmic axis whose ticks are the values themselves, in `unit`s."""
    _make_logarithmic(axis)
    axis.set_ticks(values, [f"{value / unit:,g}{suffix}" for value in values])
    axis.set_ticks([], minor=True)


def plain_log(axis: Axis, values: pd.Series) -> None:
    """A logarithmic axis labelled 0.1, 1, 10 in place of powers, as long as the values need.

    An interval that reaches below is cut: on this scale one down to 0 would have no end.
    """
    _make_logarithmic(axis)
    known = values[values > 0]
    if len(known):
        axis.set_view_interval(known.min() / 1.6, 1.6 * known.max(), ignore=True)
    axis.set_major_formatter(StrMethodFormatter("{x:g}"))


def _make_logarithmic(axis: Axis) -> None:
    if isinstance(axis, XAxis):
        axis.axes.set_xscale("log")
    else:
        axis.axes.set_yscale("log")
