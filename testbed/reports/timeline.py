"""What one replica did, step by step: requests, batches, queue and pool on one time axis."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from testbed.core.records import RunRecord
from testbed.reports.chrome_trace import chrome_trace
from testbed.reports.style import PALETTE, STYLE, TEXT_WIDTH, publish, write_whole

BLUE, GREEN, SKY, VERMILION = (PALETTE[place] for place in (0, 2, 4, 5))
LIGHT = "#dddddd"


def plot_timeline(record: RunRecord, stem: str | Path, replica: int = 0) -> list[Path]:
    """Write STEM.pdf, STEM.png, the steps as STEM.csv, and STEM.trace.json for Perfetto."""
    table = timeline_table(record, replica)
    return [
        *publish(timeline_figure(record, table, replica), table, stem),
        write_whole(Path(f"{stem}.trace.json"), chrome_trace(record).encode()),
    ]


def timeline_table(record: RunRecord, replica: int = 0) -> pd.DataFrame:
    """A row a step: the columns of STEP_COLUMNS, with tokens in place of pages, and
    cached_tokens, what the requests that the step admitted found in the cache.

    Raises ValueError for a replica without steps.
    """
    steps = pd.DataFrame(record.steps)
    steps = steps[steps["replica"] == replica]
    if steps.empty:
        known = ", ".join(map(str, np.unique(record.steps["replica"])))
        raise ValueError(f"replica={replica}: one that made steps is needed: {known or 'none'}")
    requests = pd.DataFrame(
        {name: record.requests[name] for name in ("replica", "admitted_step", "cached_tokens")}
    )
    found = requests[requests["replica"] == replica].groupby("admitted_step")["cached_tokens"].sum()
    cached = steps["step"].map(found).fillna(0).astype("int64")
    size = record.counters["page_size"]
    pages = [name for name in steps if name.endswith("_pages")]
    tokens = {name.replace("_pages", "_tokens"): steps[name] * size for name in pages}
    return steps.drop(columns=pages).assign(cached_tokens=cached, **tokens)


def timeline_figure(record: RunRecord, table: pd.DataFrame, replica: int = 0) -> Figure:
    """Both columns wide: requests, prompt tokens of each step, queue and batch, the pool."""
    with matplotlib.rc_context(dict(STYLE)):
        figure = Figure(figsize=(TEXT_WIDTH, 4.6), layout="constrained")
        requests, prompts, queue, pool = figure.subplots(
            4, 1, sharex=True, height_ratios=(1.5, 1, 0.7, 0.9)
        )
        _requests(requests, record, replica)
        _stack(
            prompts,
            table,
            (
                ("cached", table["cached_tokens"], SKY),
                ("prefill", table["prefill_tokens"], BLUE),
            ),
        )
        _bars(prompts, table, -table["evicted_tokens"], 0 * table["step"], VERMILION, "evicted")
        prompts.axhline(0, color="black", linewidth=0.5)
        prompts.set_ylabel("Tokens\na step")
        ends = np.append(table["start_s"], table["end_s"].iloc[-1])
        for name, colour in (("waiting", "#999999"), ("decode_rows", GREEN)):
            label = "decoding" if name == "decode_rows" else name
            queue.stairs(table[name], ends, color=colour, linewidth=1, baseline=None, label=label)
        queue.set_ylabel("Requests")
        queue.set_ylim(bottom=0)
        _stack(
            pool,
            table,
            (
                ("cached, in use", table["locked_tokens"], BLUE),
                ("running", _running(record, table), GREEN),
                ("cached, evictable", table["evictable_tokens"], SKY),
                ("free", table["free_tokens"], LIGHT),
            ),
        )
        pool.set_ylabel("Pool\n(tokens)")
        pool.set_xlabel("Time (s)")
        pool.set_xlim(float(table["start_s"].iloc[0]), float(table["end_s"].iloc[-1]))
        for axes in (prompts, queue, pool):
            axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
            axes.yaxis.set_major_formatter(FuncFormatter(lambda count, _: f"{abs(count):,.0f}"))
        for axes in (requests, prompts, queue, pool):
            axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), handlelength=1)
        figure.align_ylabels()
    return figure


def _running(record: RunRecord, table: pd.DataFrame) -> pd.Series:
    """Tokens' worth of pages that running sequences own by themselves."""
    total = record.counters["num_pages"] * record.counters["page_size"]
    return total - table["free_tokens"] - table["evictable_tokens"] - table["locked_tokens"]


def _requests(axes: Axes, record: RunRecord, replica: int) -> None:
    """A line a request, in order of arrival: in the queue, in prefill, in decode."""
    columns = record.requests
    mine = np.flatnonzero((columns["replica"] == replica) & (columns["admitted_step"] >= 0))
    mine = mine[np.argsort(columns["arrival_s"][mine], kind="stable")]
    moments = [columns[f"{name}_s"][mine] for name in ("arrival", "admitted", "first_token")]
    moments.append(columns["finish_s"][mine])
    place = np.arange(len(mine))
    width = min(2.0, 90 / max(len(mine), 1))
    phases = (("waiting", "#bbbbbb"), ("prefill", BLUE), ("decode", GREEN))
    for (name, colour), start, end in zip(phases, moments[:-1], moments[1:], strict=True):
        lines = np.stack([np.stack([start, place], 1), np.stack([end, place], 1)], axis=1)
        axes.add_collection(LineCollection(list(lines), colors=colour, linewidths=width))
        axes.plot([], [], color=colour, linewidth=2, label=name)
    axes.set_ylim(len(mine) - 0.5, -0.5)
    axes.set_ylabel("Requests by\narrival")
    axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))


def _stack(axes: Axes, table: pd.DataFrame, parts: Sequence[tuple[str, pd.Series, str]]) -> None:
    base = 0 * table["step"]
    for name, height, colour in parts:
        _bars(axes, table, base, base + height, colour, name)
        base = base + height


def _bars(
    axes: Axes, table: pd.DataFrame, low: pd.Series, high: pd.Series, colour: str, name: str
) -> None:
    """One rectangle a step, as long as the step; those of no height are left out."""
    shown = (high > low).to_numpy()
    start, end = table["start_s"][shown], table["end_s"][shown]
    low, high = low[shown], high[shown]
    corners = ((start, low), (start, high), (end, high), (end, low))
    shapes = np.stack([np.stack(corner, axis=1) for corner in corners], axis=1)
    # Antialiased neighbours would show a seam.
    bars = PolyCollection(list(shapes), facecolors=colour, linewidths=0, antialiaseds=False)
    axes.add_collection(bars)
    axes.plot([], [], color=colour, linewidth=4, label=name)
    axes.autoscale_view()
