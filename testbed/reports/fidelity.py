"""Predicted against measured: the error table, and the figure with the table beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from testbed.core.records import RunRecord
from testbed.metrics.fidelity import FIGURES, Prediction, compare_runs
from testbed.metrics.summary import inter_token_latencies
from testbed.reports.style import PALETTE, STYLE, TEXT_WIDTH, publish, write_whole

NAMES = {
    "output_tokens_per_s": "output tok/s",
    "makespan_s": "makespan s",
    "ttft_p50_s": "TTFT p50 ms",
    "ttft_p95_s": "TTFT p95 ms",
    "tpot_p50_s": "TPOT p50 ms",
    "tpot_p95_s": "TPOT p95 ms",
    "hit_rate": "hit rate",
}
TIMES = ("ttft_p50_s", "ttft_p95_s", "tpot_p50_s", "tpot_p95_s", "makespan_s")
"""What the scatter shows: all in seconds, so that one diagonal serves them."""
MARKERS = "osD^v"
DASHES = (0, (3, 1.5))


def fidelity_table(predictions: Sequence[Prediction]) -> str:
    """One row for each workload and figure, in their order, for a terminal."""
    lines = [
        "workload   figure         predicted    measured     error   spread",
        "---------  ------------  ----------  ----------  --------  -------",
    ]
    last = ""
    for row in predictions:
        workload = "" if row.workload == last else row.workload
        last = row.workload
        lines.append(
            f"{workload:<9}  {NAMES[row.figure]:<12}  {_value(row, row.predicted):>10}  "
            f"{_value(row, row.measured):>10}  {_part(row, row.error, signed=True):>8}  "
            f"{_part(row, row.spread):>7}"
        )
    notes = (
        "measured: median of the engine's runs; spread: the farthest of them from it",
        "error: predicted less measured; both relative, for the hit rate in points",
    )
    return "\n".join([*lines, "", *notes])


def plot_fidelity(predictions: Sequence[Prediction], stem: str | Path) -> list[Path]:
    """Write the scatter and the errors as STEM.pdf, STEM.png and the numbers as STEM.csv."""
    return publish(fidelity_figure(predictions), pd.DataFrame(predictions), stem)


def plot_fidelity_runs(
    measured: Mapping[str, Sequence[RunRecord]],
    predicted: Mapping[str, Sequence[RunRecord]],
    stem: str | Path,
) -> list[Path]:
    """Likewise, with the distributions of TTFT and ITL, and those in STEM.distributions.csv.

    measured, predicted: by load, run by run; of several the first, with its steps, is shown.
    """
    predictions = [
        row for load, runs in predicted.items() for row in compare_runs(load, runs, measured[load])
    ]
    pairs = {load: (runs[0], predicted[load][0]) for load, runs in measured.items()}
    curves = distribution_table(pairs)
    text = curves.to_csv(index=False, float_format="%.6g", lineterminator="\n")
    return [
        *publish(fidelity_figure(predictions, curves), pd.DataFrame(predictions), stem),
        write_whole(Path(f"{stem}.distributions.csv"), text.encode()),
    ]


def distribution_table(pairs: Mapping[str, tuple[RunRecord, RunRecord]]) -> pd.DataFrame:
    """By load, backend and quantity (ttft, itl): seconds, rising, and the share up to each."""
    rows = [
        {"workload": load, "backend": backend, "quantity": quantity, "seconds": s, "share": share}
        for load, pair in pairs.items()
        for backend, record in zip(("engine", "simulator"), pair, strict=True)
        for quantity, values, weights in _samples(record)
        for s, share in _shares(values, weights)
    ]
    return pd.DataFrame(rows)


def _samples(record: RunRecord) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    done = record.requests["status"] == "finished"
    ttft = (record.requests["first_token_s"] - record.requests["arrival_s"])[done]
    yield "ttft", ttft, np.ones(len(ttft), dtype=np.int64)
    yield "itl", *inter_token_latencies(record)


def _shares(values: np.ndarray, weights: np.ndarray) -> Iterator[tuple[float, float]]:
    known = weights > 0
    order = np.argsort(values[known], kind="stable")
    total = np.cumsum(weights[known][order])
    return zip(values[known][order].tolist(), (total / total[-1]).tolist(), strict=True)


def fidelity_figure(
    predictions: Sequence[Prediction], distributions: pd.DataFrame | None = None
) -> Figure:
    """Predicted against measured times, a colour a workload, and the errors with their spreads.

    With distributions: TTFT and ITL beside the scatter, the engine's solid, the simulator's dashed,
    and the errors below.
    """
    workloads = list(dict.fromkeys(row.workload for row in predictions))
    colours = {name: PALETTE[i % len(PALETTE)] for i, name in enumerate(workloads)}
    with matplotlib.rc_context(dict(STYLE)):
        if distributions is None:
            figure = Figure(figsize=(TEXT_WIDTH, 2.9), layout="constrained")
            scatter, table = figure.subplots(1, 2, width_ratios=(1, 1.35))
        else:
            figure = Figure(figsize=(TEXT_WIDTH, 4.5), layout="constrained")
            above, below = figure.subfigures(2, 1, height_ratios=(1.25, 1), squeeze=False)[:, 0]
            scatter, *panels = above.subplots(1, 3, width_ratios=(1.15, 1, 1))
            for axes, quantity in zip(panels, ("ttft", "itl"), strict=True):
                _distribution(axes, distributions, quantity, colours)
            panels[1].plot([], [], color="#555555", label="engine")
            panels[1].plot([], [], color="#555555", linestyle=DASHES, label="simulator")
            panels[1].legend(loc="lower right")
            table = below.subplots()
        _scatter(scatter, predictions, colours)
        _errors(table, predictions, workloads, colours)
    return figure


def _distribution(
    axes: Axes, distributions: pd.DataFrame, quantity: str, colours: Mapping[str, str]
) -> None:
    shown = distributions[distributions["quantity"] == quantity]
    for (load, backend), line in shown.groupby(["workload", "backend"], sort=False):
        axes.step(
            1e3 * line["seconds"],
            line["share"],
            where="post",
            color=colours[load],
            linestyle="-" if backend == "engine" else DASHES,
        )
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel(f"{quantity.upper()} (ms)")
    axes.set_ylim(0, 1)
    axes.grid(axis="y")
    axes.set_ylabel(f"Share of {'requests' if quantity == 'ttft' else 'tokens'}")


def _scatter(axes: Axes, predictions: Sequence[Prediction], colours: dict[str, str]) -> None:
    shown = [row for row in predictions if row.figure in TIMES]
    for row in shown:
        axes.plot(
            row.measured,
            row.predicted,
            MARKERS[TIMES.index(row.figure)],
            color=colours[row.workload],
            markersize=4,
            markeredgewidth=0,
        )
    values = [value for row in shown for value in (row.measured, row.predicted) if value > 0]
    limits = (0.7 * min(values), 1.4 * max(values)) if values else (0.1, 1.0)
    axes.plot(limits, limits, color="black", linewidth=0.6, zorder=0)
    axes.set(xscale="log", yscale="log", xlim=limits, ylim=limits, aspect="equal")
    axes.set_xlabel("Measured (s)")
    axes.set_ylabel("Predicted (s)")
    for marker, name in zip(MARKERS, TIMES, strict=True):
        label = NAMES[name].removesuffix(" ms").removesuffix(" s")
        axes.plot([], [], marker, color="#555555", markersize=4, label=label)
    axes.legend(loc="upper left", handletextpad=0.2, borderpad=0)


def _errors(
    axes: Axes, predictions: Sequence[Prediction], workloads: list[str], colours: dict[str, str]
) -> None:
    by_place = {(row.workload, row.figure): row for row in predictions}
    cells = [
        [
            f"{_part(row, row.error, signed=True)} ({_part(row, row.spread)})"
            if (row := by_place.get((workload, name)))
            else ""
            for workload in workloads
        ]
        for name in FIGURES
    ]
    table = axes.table(
        cellText=cells,
        rowLabels=[NAMES[name].removesuffix(" ms").removesuffix(" s") for name in FIGURES],
        colLabels=workloads,
        loc="upper center",
        edges="horizontal",
        cellLoc="right",
    )
    table.auto_set_font_size(False)
    table.set_fontsize(6)
    table.scale(1.0, 1.3)
    for cell in table.get_celld().values():
        cell.set(linewidth=0.4, edgecolor=STYLE["grid.color"])
    for place, workload in enumerate(workloads):
        table[0, place].get_text().set_color(colours[workload])
    axes.set_axis_off()
    axes.set_title("Error (the engine's own spread)")


def _value(row: Prediction, value: float) -> str:
    """In the unit of NAMES."""
    if row.figure == "hit_rate":
        return f"{value:.4f}"
    return f"{1e3 * value:,.1f}" if NAMES[row.figure].endswith(" ms") else f"{value:,.2f}"


def _part(row: Prediction, value: float, signed: bool = False) -> str:
    points = row.figure == "hit_rate"
    digits = f"{'+' if signed else ''}.{2 if points else 1}f"
    return f"{100 * value:{digits}}{' pt' if points else ' %'}"
