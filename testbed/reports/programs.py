"""What prefix caching does for LM programs: hit rates, what each part is worth, what a hit is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from testbed.metrics.loading import Results
from testbed.reports.curves import HALF_WIDTH, interval_table, runs_table
from testbed.reports.style import COLUMN_WIDTH, PALETTE, STYLE, TEXT_WIDTH, colours, publish

WORKLOAD, ARM = "workload.name", "ablation"
FULL = "full"
"""The arm from which nothing is taken away."""
EFFECTS = {
    "output_tokens_per_s": "Output throughput (tokens/s)",
    "ttft_mean_s": "Mean time to first token (s)",
    "e2e_mean_s": "Mean end-to-end latency (s)",
}
"""What depends on the hit rate: summary column and axis label."""


def hit_rate_table(results: Results, published: Mapping[str, tuple[float, float]]) -> pd.DataFrame:
    """One row a workload: hit rate, sharing bound, the part of it that was reached.

    published: hit rate and optimum that somebody else reports, by workload; they give the order,
    and workloads without come last. Raises ValueError for runs without a sharing bound.
    """
    runs = runs_table(results, (WORKLOAD, "sharing_bound"))
    runs["of_optimum"] = runs["hit_rate"] / runs["sharing_bound"]
    table = interval_table(runs, (WORKLOAD,), ("hit_rate", "sharing_bound", "of_optimum"))
    names = table[WORKLOAD]
    table["published"] = [published.get(name, (np.nan, np.nan))[0] for name in names]
    table["published_optimum"] = [published.get(name, (np.nan, np.nan))[1] for name in names]
    listed = list(published)
    places = [listed.index(name) if name in listed else len(listed) for name in names]
    return table.iloc[np.argsort(places, kind="stable")].reset_index(drop=True)


def ablation_table(results: Results, arms: Sequence[str]) -> pd.DataFrame:
    """One row for each workload and arm, those of `arms` in that order.

    speed: how many times as fast as the arm FULL the same programs were done, paired by seed.
    Raises ValueError for a workload and seed without that arm.
    """
    runs = runs_table(results, (WORKLOAD, ARM))
    keys = [WORKLOAD, "seed"]
    # Two runs of one seed are interval_table's to refuse.
    full = runs[runs[ARM] == FULL].drop_duplicates(keys).set_index(keys)["makespan_s"]
    missing = [key for key in runs[keys].itertuples(index=False, name=None) if key not in full]
    if missing:
        raise ValueError(
            f"{WORKLOAD}={missing[0][0]}, seed={missing[0][1]}: no run with {ARM}={FULL}, which "
            "the others are compared with"
        )
    own = pd.MultiIndex.from_frame(runs[keys])
    runs["speed"] = full.loc[own].to_numpy() / runs["makespan_s"].to_numpy()
    table = interval_table(runs, (WORKLOAD, ARM), ("speed", "hit_rate"))
    in_order = [table[table[ARM] == arm] for arm in arms]
    return pd.concat(in_order).sort_values(WORKLOAD, kind="stable").reset_index(drop=True)


def effect_table(results: Results, option: str) -> pd.DataFrame:
    """One row for each value of `option`, by rising hit rate: what came of it (EFFECTS)."""
    runs = runs_table(results, (option,))
    table = interval_table(runs, (option,), ("hit_rate", *EFFECTS))
    return table.sort_values("hit_rate").reset_index(drop=True)


def plot_hit_rates(table: pd.DataFrame, stem: str | Path) -> list[Path]:
    """Write hit_rate_table's figure as STEM.pdf and STEM.png, and the table as STEM.csv."""
    with matplotlib.rc_context(dict(STYLE)):
        figure = Figure(figsize=(COLUMN_WIDTH, 0.9 + 0.22 * len(table)), layout="constrained")
        axes = figure.subplots()
        rows = np.arange(len(table))
        axes.barh(
            rows,
            table["hit_rate"],
            height=0.6,
            color=PALETTE[0],
            xerr=table[f"hit_rate{HALF_WIDTH}"].fillna(0.0),
            error_kw={"elinewidth": 0.8},
            label="simulated",
        )
        _ticks(axes, table["sharing_bound"], rows, "black", (), "optimum")
        if table["published"].notna().any():
            axes.plot(
                table["published"], rows, "D", color=PALETTE[1], markersize=3.5, label="published"
            )
            _ticks(axes, table["published_optimum"], rows, PALETTE[1], (1, 1), "published optimum")
        axes.set_yticks(rows, table[WORKLOAD])
        axes.set_ylim(len(table) - 0.4, -0.6)
        axes.set_xlim(0, 1)
        axes.set_xlabel("Prefix-cache hit rate")
        axes.grid(axis="x")
        figure.legend(loc="outside upper center", ncols=2, handlelength=1.6)
    return publish(figure, table, stem)


def plot_ablation(table: pd.DataFrame, stem: str | Path) -> list[Path]:
    """Write ablation_table's figure as STEM.pdf and STEM.png, and the table as STEM.csv."""
    arms = list(dict.fromkeys(table[ARM]))
    workloads = list(dict.fromkeys(table[WORKLOAD]))
    with matplotlib.rc_context(dict(STYLE)):
        figure = Figure(figsize=(TEXT_WIDTH, 2.2), layout="constrained")
        axes = figure.subplots()
        width = 0.84 / len(arms)
        own = colours(arms)
        for place, arm in enumerate(arms):
            rows = table[table[ARM] == arm]
            shift = (place - (len(arms) - 1) / 2) * width
            axes.bar(
                [workloads.index(name) + shift for name in rows[WORKLOAD]],
                rows["speed"],
                width=0.9 * width,
                color=own[arm],
                yerr=rows[f"speed{HALF_WIDTH}"].fillna(0.0),
                error_kw={"elinewidth": 0.8},
                label=arm.replace("_", " "),
            )
        axes.set_xticks(range(len(workloads)), workloads)
        axes.set_ylabel(f"Throughput, {FULL} = 1")
        axes.grid(axis="y")
        figure.legend(loc="outside upper center", ncols=len(arms), handlelength=1.2)
    return publish(figure, table, stem)


def plot_effect(table: pd.DataFrame, stem: str | Path) -> list[Path]:
    """Write effect_table's figure as STEM.pdf and STEM.png, and the table as STEM.csv."""
    with matplotlib.rc_context(dict(STYLE)):
        figure = Figure(figsize=(TEXT_WIDTH, 2.0), layout="constrained")
        for axes, (metric, label) in zip(
            figure.subplots(1, len(EFFECTS)), EFFECTS.items(), strict=True
        ):
            axes.errorbar(
                table["hit_rate"],
                table[metric],
                xerr=table[f"hit_rate{HALF_WIDTH}"].fillna(0.0),
                yerr=table[f"{metric}{HALF_WIDTH}"].fillna(0.0),
                color=PALETTE[0],
                marker="o",
                elinewidth=0.8,
            )
            axes.set_xlim(0, 1)
            axes.set_ylim(bottom=0)
            axes.set_xlabel("Prefix-cache hit rate")
            axes.set_ylabel(label)
            axes.grid()
    return publish(figure, table, stem)


def _ticks(
    axes: Axes,
    values: pd.Series,
    rows: np.ndarray,
    colour: str,
    dashes: Sequence[float],
    label: str,
) -> None:
    low, high = rows - 0.42, rows + 0.42
    axes.vlines(
        values, low, high, colors=colour, linestyles=(0, dashes), linewidth=1.2, label=label
    )
