"""Hit rate and throughput of each policy, workload by workload, beside what was possible."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from testbed.metrics.loading import Results
from testbed.reports.curves import HALF_WIDTH, interval_table, label_looks, marked, runs_table
from testbed.reports.figures import BOUNDS
from testbed.reports.style import STYLE, TEXT_WIDTH, publish

WORKLOAD, POLICY = "workload.name", "scheduler"
METRICS = ("hit_rate", *BOUNDS, "output_tokens_per_s", "relative_throughput")
GROUP_WIDTH = 0.84
"""Of the distance between two workloads."""


def plot_workloads(results: Results, stem: str | Path, baseline: str | None = None) -> list[Path]:
    """Write the figure as STEM.pdf and STEM.png, and its numbers as STEM.csv.

    baseline: the policy whose throughput is 1; by default fcfs, else the first.
    """
    table = workload_table(results, baseline)
    return publish(workload_figure(table), table, stem)


def workload_table(results: Results, baseline: str | None = None) -> pd.DataFrame:
    """A row for each workload and policy; relative_throughput: of the baseline's with that seed.

    Raises ValueError if the baseline did not run, or lacks a workload or a seed of the others.
    """
    runs = runs_table(results, (WORKLOAD, POLICY))
    policies = sorted(runs[POLICY].unique())
    base = baseline or ("fcfs" if "fcfs" in policies else policies[0])
    if base not in policies:
        raise ValueError(f"baseline={base!r}: one of {', '.join(policies)} is needed")
    pair = [WORKLOAD, "seed"]
    of_base = runs[runs[POLICY] == base].set_index(pair)["output_tokens_per_s"]
    alone = runs.set_index(pair).index.difference(of_base.index)
    if len(alone):
        name, seed = alone[0]
        raise ValueError(f"workload {name!r}, seed {seed}: the baseline {base!r} did not serve it")
    relative = (
        runs["output_tokens_per_s"].to_numpy()
        / of_base.loc[pd.MultiIndex.from_frame(runs[pair])].to_numpy()
    )
    table = interval_table(runs.assign(relative_throughput=relative), (WORKLOAD, POLICY), METRICS)
    return table.assign(baseline=base)


def workload_figure(table: pd.DataFrame) -> Figure:
    """Both columns wide: groups of bars, hit rates with bounds as ticks above throughputs."""
    names = list(dict.fromkeys(table[WORKLOAD]))
    policies = list(label_looks(table, POLICY))
    with matplotlib.rc_context(dict(STYLE)):
        figure = Figure(figsize=(TEXT_WIDTH, 3.4), layout="constrained")
        hit, throughput = figure.subplots(2, 1, sharex=True, height_ratios=(1.3, 1))
        _groups(hit, table, "hit_rate", names, policies)
        _ticks(hit, table, names, policies)
        _groups(throughput, table, "relative_throughput", names, policies)
        hit.set_ylim(bottom=0)
        throughput.axhline(1, color="black", linewidth=0.6)
        hit.set_ylabel("Prefix-cache hit rate")
        throughput.set_ylabel(f"Output throughput\nover {table['baseline'].iloc[0]}")
        throughput.set_xticks(range(len(names)), [name.replace("_", " ") for name in names])
        throughput.set_xlim(-0.5, len(names) - 0.5)
        for axes in (hit, throughput):
            axes.tick_params(axis="x", length=0)
        handles, labels = hit.get_legend_handles_labels()
        figure.legend(
            handles,
            labels,
            loc="outside upper center",
            ncols=len(labels),
            handlelength=1.2,
            columnspacing=1.2,
            borderpad=0,
        )
    return figure


def _groups(
    axes: Axes, table: pd.DataFrame, metric: str, names: Sequence[str], policies: Sequence[str]
) -> None:
    width = GROUP_WIDTH / len(policies)
    for policy, look in label_looks(table, POLICY).items():
        rows = table[table[POLICY] == policy]
        axes.bar(
            _places(rows, names, policies),
            rows[metric],
            width=0.9 * width,
            color=look.colour,
            yerr=rows[f"{metric}{HALF_WIDTH}"].fillna(0.0),
            error_kw={"elinewidth": 0.7},
            label=marked(table, POLICY, policy),
        )
    axes.grid(axis="y")


def _ticks(axes: Axes, table: pd.DataFrame, names: Sequence[str], policies: Sequence[str]) -> None:
    half = GROUP_WIDTH / len(policies) / 2
    places = _places(table, names, policies)
    for metric, (name, style) in BOUNDS.items():
        if table[metric].notna().any():
            axes.hlines(
                table[metric],
                places - half,
                places + half,
                colors="black",
                linestyles=style,
                linewidth=1.0,
                label=name.split(",")[0],
            )


def _places(rows: pd.DataFrame, names: Sequence[str], policies: Sequence[str]) -> np.ndarray:
    """The middle of each row's bar."""
    group = rows[WORKLOAD].map({name: place for place, name in enumerate(names)})
    inside = rows[POLICY].map({name: place for place, name in enumerate(policies)})
    shift = (inside - (len(policies) - 1) / 2) * GROUP_WIDTH / len(policies)
    return np.asarray(group + shift, dtype=np.float64)
