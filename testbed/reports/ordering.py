"""What an order of prompts costs: the grid of order, service and capacity, and the three gaps."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from testbed.metrics.loading import Results
from testbed.metrics.pairing import is_missing
from testbed.metrics.run_gaps import DEPTH_FIRST, SERVICE, run_gaps
from testbed.reports.curves import HALF_WIDTH, count_axis, interval_table, runs_table
from testbed.reports.gap_lines import LEVERS
from testbed.reports.style import COLUMN_WIDTH, PALETTE, STYLE, TEXT_WIDTH, looks, publish

SIZE = "cache.tokens"
ORDERS = ("workload.order", "workload.scrambled")
"""The options that say how a prompt is ordered."""
AS_GIVEN = "as given"
"""The order of prompts that no option arranges."""
RATES = ("best_bound", "bound", "depth_first", "measured")
GAP_COLOURS = dict(zip(LEVERS, (PALETTE[1], PALETTE[4], PALETTE[3]), strict=True))
SCRAMBLED_NAMES = {"False": "fixed", "True": "scrambled"}
DASHES = ("-", (0, (3, 1.2)), (0, (1, 1)), (0, (5, 1, 1, 1)))


def plot_order_grid(results: Results, stem: str | Path) -> list[Path]:
    """Write hit rate against cache size as STEM.pdf and STEM.png, and its points as STEM.csv."""
    table = order_grid_table(results)
    return publish(order_grid_figure(table), table, stem)


def order_grid_table(results: Results) -> pd.DataFrame:
    """A row for each order, scheduler and cache size: hit rate and sharing bound, over seeds.

    Raises ValueError for runs without an option that orders prompts, or without a cache size.
    """
    runs = runs_table(results, (SIZE, SERVICE))
    if not any(name in runs for name in ORDERS):
        raise ValueError(f"no run sets {' or '.join(ORDERS)}, which the figure compares")
    runs["order"] = _orders(runs)
    return interval_table(runs, ("order", SERVICE, SIZE), ("hit_rate", "sharing_bound"))


def order_grid_figure(table: pd.DataFrame) -> Figure:
    """One column wide: a colour for each scheduler, a dash for each order, its bound as a tick."""
    bounds = table.groupby("order")["sharing_bound"].mean().sort_values(ascending=False)
    schedulers = looks(list(dict.fromkeys(table[SERVICE])))
    dashes = dict(zip(bounds.index, DASHES * len(bounds), strict=False))
    with matplotlib.rc_context(dict(STYLE)):
        figure = Figure(figsize=(COLUMN_WIDTH, 2.6), layout="constrained")
        axes = figure.subplots()
        for order, bound in bounds.items():
            for scheduler, look in schedulers.items():
                line = table[(table["order"] == order) & (table[SERVICE] == scheduler)]
                axes.errorbar(
                    line[SIZE],
                    line["hit_rate"],
                    yerr=line[f"hit_rate{HALF_WIDTH}"].fillna(0.0),
                    color=look.colour,
                    marker=look.marker,
                    linestyle=dashes[order],
                    elinewidth=0.8,
                )
            _bound_tick(axes, order, bound)
        axes.grid(axis="y")
        axes.set_ylim(0, 1)
        count_axis(axes.xaxis, sorted(table[SIZE].unique()), unit=1000, suffix="k")
        axes.set_xlabel("KV cache (tokens)")
        axes.set_ylabel("Prefix-cache hit rate")
        keys = [
            Line2D([], [], color=look.colour, marker=look.marker, label=name)
            for name, look in schedulers.items()
        ]
        keys += [
            Line2D([], [], color="black", linestyle=dash, label=_in_words(order))
            for order, dash in dashes.items()
        ]
        figure.legend(handles=keys, loc="outside upper center", ncols=2, borderpad=0)
    return figure


def plot_gaps(results: Results, stem: str | Path) -> list[Path]:
    """Write the three gaps of each order as STEM.pdf and STEM.png, and as numbers in STEM.csv."""
    table = gap_table(results)
    return publish(gap_figure(table), table, stem)


def gap_table(results: Results) -> pd.DataFrame:
    """A row for each workload, order, cache size and scheduler but `dfs`: four rates, three gaps.

    Each is a mean over seeds with its 95 % half width. best_bound and template are NaN where the
    workload has no segments. Raises ValueError for a run without a partner under `dfs` (see
    run_gaps), without bounds, or recorded before best_order_bound was.
    """
    runs = runs_table(results, (SERVICE,))
    runs["order"] = _orders(runs)
    runs["workload"] = runs["workload.name"].fillna("") if "workload.name" in runs else ""
    runs[SIZE] = [_size(run, results) for run in runs.to_dict("records")]
    others = runs[runs[SERVICE] != DEPTH_FIRST]
    if others.empty:
        raise ValueError(f"every run has {SERVICE}={DEPTH_FIRST}; gaps are those of another one")
    gaps = run_gaps(results)
    for run in others.to_dict("records"):
        _check(run)
        if run["run"] not in gaps:
            raise ValueError(
                f"run {run['run']}: none with {SERVICE}={DEPTH_FIRST}, {run['order']}, "
                f"{SIZE}={run[SIZE]} and seed {run['seed']}; it is needed for the gaps"
            )
    rates = {
        name: [getattr(gaps[run], name) for run in others["run"]] for name in (*RATES, *LEVERS)
    }
    table = interval_table(
        others.assign(**rates), ("workload", "order", SIZE, SERVICE), (*RATES, *LEVERS)
    )
    return table.sort_values(["bound", "measured"], ascending=False)


def gap_figure(table: pd.DataFrame) -> Figure:
    """Both columns wide: one row an order, from what it reached up to what the best order could.

    A gap below 0, where the scheduler beats depth-first service, is a thin bar to the right. The
    interval is that of the measured rate.
    """
    names = [_row_name(row, table) for row in table.to_dict("records")]
    with matplotlib.rc_context(dict(STYLE)):
        figure = Figure(figsize=(TEXT_WIDTH, 0.75 + 0.34 * len(table)), layout="constrained")
        axes = figure.subplots()
        axes.barh(range(len(table)), table["measured"], height=0.62, color=PALETTE[7])
        for place, rate in enumerate(table["measured"]):
            _number(axes, rate / 2, place, rate)
        axes.errorbar(
            table["measured"],
            [place + 0.2 for place in range(len(table))],
            xerr=table[f"measured{HALF_WIDTH}"].fillna(0.0),
            fmt="none",
            ecolor="black",
            elinewidth=0.8,
            zorder=3,
        )
        ends = dict(zip(LEVERS, RATES[:3], strict=True))
        starts = dict(zip(LEVERS, RATES[1:], strict=True))
        for lever in LEVERS:
            for place, row in enumerate(table.to_dict("records")):
                start, gap = row[starts[lever]], row[ends[lever]] - row[starts[lever]]
                if math.isnan(gap):
                    continue
                axes.barh(
                    place,
                    gap,
                    left=start,
                    height=0.62 if gap > 0 else 0.16,
                    color=GAP_COLOURS[lever],
                )
                _number(axes, start + gap / 2, place, gap)
        axes.set_yticks(range(len(table)), names)
        axes.set_ylim(len(table) - 0.5, -0.5)
        axes.set_xlim(0, 1)
        axes.grid(axis="x")
        axes.set_xlabel("Prefix-cache hit rate")
        known = [lever for lever in reversed(LEVERS) if table[lever].notna().any()]
        keys = {"measured": PALETTE[7]} | {f"{x} gap": GAP_COLOURS[x] for x in known}
        patches = [matplotlib.patches.Patch(color=c, label=name) for name, c in keys.items()]
        figure.legend(handles=patches, loc="outside upper center", ncols=4, borderpad=0)
    return figure


def _orders(runs: pd.DataFrame) -> list[str]:
    """What the order of each run's prompts is called."""
    option = next((name for name in ORDERS if name in runs), None)
    return [AS_GIVEN] * len(runs) if option is None else [_order_name(x) for x in runs[option]]


def _size(run: dict[Hashable, Any], results: Results) -> int:
    """Tokens of the cache: as many as were set, or else as were free."""
    if not is_missing(run.get(SIZE)):
        return int(run[SIZE])
    counters = results.manifests[run["run"]]["counters"]
    return int(counters["num_pages"] * counters["page_size"])


def _check(run: dict[Hashable, Any]) -> None:
    """Refuse a run whose bounds are not known, though they could be."""
    if is_missing(run.get("sharing_bound")):
        raise ValueError(
            f"run {run['run']}: no sharing_bound in its summary, which the gaps need; "
            "runs with record.bounds=true are needed"
        )
    segmented = not is_missing(run.get(ORDERS[0]))
    if "best_order_bound" not in run or (segmented and is_missing(run["best_order_bound"])):
        raise ValueError(
            f"run {run['run']}: no best_order_bound in its summary, which the template gap needs; "
            "it is older than this figure, run it again into a new folder"
        )


def _order_name(value: object) -> str:
    if is_missing(value):
        return AS_GIVEN
    if isinstance(value, Sequence) and not isinstance(value, str):
        return " > ".join(map(str, value))
    return SCRAMBLED_NAMES.get(str(value), str(value))


def _in_words(order: str) -> str:
    return order.replace("_", " ")


def _row_name(row: dict[str, object], table: pd.DataFrame) -> str:
    """The order, and what else tells the rows apart."""
    named = table["workload"].nunique() > 1 or row["order"] == AS_GIVEN
    parts = [str(row["workload"])] if named and row["workload"] else []
    parts.append(_in_words(str(row["order"])))
    parts += [str(row[name]) for name in (SERVICE, SIZE) if table[name].nunique() > 1]
    return "\n".join(textwrap.wrap(", ".join(parts), 34))


def _bound_tick(axes: Axes, order: str, bound: float) -> None:
    axes.annotate(
        f"bound, {_in_words(order)}",
        (1.0, bound),
        xycoords=("axes fraction", "data"),
        xytext=(-1, 2),
        textcoords="offset points",
        ha="right",
        fontsize=STYLE["legend.fontsize"],
    )
    axes.axhline(bound, xmin=0.9, color="black", linewidth=1.2)


def _number(axes: Axes, x: float, place: int, value: float) -> None:
    """A rate in percentage points, where there is room for it."""
    if value >= 0.03:
        axes.text(x, place, f"{100 * value:.1f}", ha="center", va="center_baseline", fontsize=7)
