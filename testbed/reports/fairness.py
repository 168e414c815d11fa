"""Service of each client over time, and the gap between clients with what was promised."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from testbed.core.records import RunRecord
from testbed.metrics.gap_curve import promised_gap, service_gap_curve
from testbed.metrics.intervals import mean_interval
from testbed.metrics.loading import Results
from testbed.metrics.service import EXTENDED, TOTAL, ServiceUnit, clients_of, service_curve
from testbed.metrics.stored import read_record
from testbed.reports.curves import runs_table
from testbed.reports.style import PALETTE, STYLE, TEXT_WIDTH, looks, publish

WINDOWS = 12
SAMPLES_A_WINDOW = 12
UNITS: Mapping[str, ServiceUnit] = MappingProxyType({"gap_total": TOTAL, "gap_extended": EXTENDED})
THOUSANDS = FuncFormatter(lambda tokens, _: f"{tokens / 1000:,g}k" if tokens else "0")


def plot_fairness(results: Results, stem: str | Path) -> list[Path]:
    """Write the figure as STEM.pdf and STEM.png, and its lines as STEM.csv."""
    table = fairness_table(results)
    return publish(fairness_figure(table), table, stem)


def fairness_table(results: Results) -> pd.DataFrame:
    """Means over seeds with 95 % half widths: a row for each scheduler, quantity, client and time.

    quantity: service_per_s, total tokens per second and weight of one client, in windows that end
    at time_s; gap_total and gap_extended, the largest gap so far; their _bound, if there is one.
    Times run to the last arrival of any run: what comes later is the emptying of queues. Where all
    arrive at once, that is all there is, and they run to the last token. ValueError if nothing was
    served after time 0.
    """
    runs = runs_table(results, ("scheduler",))
    records = {run: read_record(results.folders[run]) for run in runs["run"]}
    end_s = max(_end_s(record) for record in records.values())
    if not end_s > 0:
        raise ValueError("fairness: no request of these runs was served, and the figure needs it")
    times_s = np.linspace(0, end_s, WINDOWS * SAMPLES_A_WINDOW + 1)
    rows: list[dict[str, Any]] = []
    for scheduler, group in runs.groupby("scheduler", sort=True):
        samples: dict[tuple[str, str], list[Any]] = {}
        for _, run in group.iterrows():
            for place, values in _curves(run, records[run["run"]], times_s).items():
                samples.setdefault(place, []).append(values)
        for (quantity, client), values in samples.items():
            ends = times_s[SAMPLES_A_WINDOW::SAMPLES_A_WINDOW]
            for time_s, seeds in zip(
                ends if client else times_s, np.stack(values, axis=1), strict=True
            ):
                mean, half_width = mean_interval(seeds)
                rows.append(
                    {
                        "scheduler": scheduler,
                        "quantity": quantity,
                        "client": client,
                        "time_s": time_s,
                        "seeds": len(seeds),
                        "mean": mean,
                        "half_width": half_width,
                    }
                )
    return pd.DataFrame(rows)


def _end_s(record: RunRecord) -> float:
    """The last arrival; if all arrive at once, the last token."""
    arrivals = record.requests["arrival_s"]
    last = float(arrivals.max(initial=0.0))
    if last > arrivals.min(initial=math.inf):
        return last
    return float(record.requests["finish_s"].max(initial=0.0))


def _curves(
    run: pd.Series, record: RunRecord, times_s: np.ndarray[Any, Any]
) -> dict[tuple[str, str], Any]:
    """Values over time by (quantity, client)."""
    given = service_curve(record, TOTAL, times_s[::SAMPLES_A_WINDOW])
    rates = np.diff(given, axis=0) / (times_s[SAMPLES_A_WINDOW] - times_s[0])
    curves: dict[tuple[str, str], Any] = {
        ("service_per_s", name): rates[:, place]
        for place, name in enumerate(clients_of(record).names)
    }
    options = {
        name.removeprefix("scheduler."): value
        for name, value in run.items()
        if str(name).startswith("scheduler.")
    }
    promise = promised_gap(run["scheduler"], options, record)
    for quantity, unit in UNITS.items():
        curves[quantity, ""] = service_gap_curve(record, unit, times_s)
        if promise is not None and promise[0] == unit:
            curves[f"{quantity}_bound", ""] = np.full(len(times_s), promise[1])
    return curves


def fairness_figure(table: pd.DataFrame) -> Figure:
    """Above: a panel a scheduler, a line a client. Below: the gap in both units, dashed bounds."""
    schedulers = list(dict.fromkeys(table["scheduler"]))
    clients = sorted(set(table["client"]) - {""})
    own = {name: PALETTE[place % len(PALETTE)] for place, name in enumerate(clients)}
    # A client's name may hold a dollar sign, which is no formula.
    with matplotlib.rc_context({**STYLE, "text.parse_math": False}):
        figure = Figure(figsize=(TEXT_WIDTH, 3.9), layout="constrained")
        halves = figure.subfigures(2, 1, height_ratios=(1, 1.25), squeeze=False)
        above, below = halves[:, 0]
        panels = above.subplots(1, len(schedulers), sharey=True, squeeze=False)[0]
        for axes, scheduler in zip(panels, schedulers, strict=True):
            for client in clients:
                line = _line(table, scheduler, "service_per_s", client)
                _band(axes, line, own[client], label=_in_legend(client))
            axes.set_title(scheduler)
            axes.set_xlabel("Time (s)")
            axes.grid(axis="y")
            axes.set_xlim(left=0)
        panels[0].yaxis.set_major_formatter(THOUSANDS)
        panels[0].set_ylabel("Service (total\ntokens/s)")
        panels[0].set_ylim(bottom=0)
        handles, names = panels[0].get_legend_handles_labels()
        above.legend(handles, names, loc="outside upper center", ncols=6, borderpad=0)
        gaps = below.subplots(1, 2)
        for axes, quantity in zip(gaps, UNITS, strict=True):
            for scheduler, look in looks(schedulers).items():
                _band(axes, _line(table, scheduler, quantity), look.colour, label=scheduler)
                bound = _line(table, scheduler, f"{quantity}_bound")
                axes.plot(bound["time_s"], bound["mean"], color=look.colour, linestyle=(0, (4, 2)))
            axes.set_xlabel("Time (s)")
            axes.set_ylabel(f"Largest gap so far\n({quantity.removeprefix('gap_')} tokens)")
            axes.set_xlim(left=0)
            axes.set_ylim(bottom=0)
            axes.yaxis.set_major_formatter(THOUSANDS)
            axes.grid(axis="y")
        gaps[0].plot([], [], color="#555555", linestyle=(0, (4, 2)), label="promised bound")
        handles, names = gaps[0].get_legend_handles_labels()
        below.legend(handles, names, loc="outside upper center", ncols=6, borderpad=0)
    return figure


def _in_legend(client: str) -> str:
    """Matplotlib leaves out of a legend what begins with an underscore."""
    return f" {client}" if client.startswith("_") else client


def _line(table: pd.DataFrame, scheduler: str, quantity: str, client: str = "") -> pd.DataFrame:
    return table[
        (table["scheduler"] == scheduler)
        & (table["quantity"] == quantity)
        & (table["client"] == client)
    ]


def _band(axes: Axes, line: pd.DataFrame, colour: str, label: str) -> None:
    axes.plot(line["time_s"], line["mean"], color=colour, label=label)
    if not line["half_width"].map(math.isnan).all():
        low, high = line["mean"] - line["half_width"], line["mean"] + line["half_width"]
        axes.fill_between(line["time_s"], low, high, color=colour, alpha=0.2, linewidth=0)
