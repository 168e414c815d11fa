"""Runs side by side on a terminal."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from testbed.metrics.intervals import Interval
from testbed.reports.comparison import ORACLE_NOTE, Comparison

MAX_WIDTH = 100
MAX_LABEL = 40
_GAP = "  "


@dataclass(frozen=True)
class Metric:
    """A column: `scale` times a summary column under two lines of heading.

    best: what is best of several values, or None. always: shown even if it is the same everywhere.
    decimals: None for as many as its largest value leaves room for.
    """

    column: str
    heading: tuple[str, str]
    best: Callable[[Sequence[float]], float] | None = None
    scale: float = 1.0
    decimals: int | None = None
    always: bool = False


METRICS: tuple[Metric, ...] = (
    Metric("hit_rate", ("hit", "rate"), max, decimals=3, always=True),
    Metric("clairvoyant_bound", ("clairv.", "bound"), decimals=3),
    Metric("sharing_bound", ("sharing", "bound"), decimals=3),
    Metric("requests_per_s", ("requests", "per s"), max),
    Metric("output_tokens_per_s", ("out tok", "per s"), max),
    Metric("ttft_p50_s", ("TTFT s", "p50"), min),
    Metric("ttft_p99_s", ("TTFT s", "p99"), min),
    Metric("tpot_p50_s", ("TPOT ms", "p50"), min, scale=1e3),
    Metric("itl_p99_s", ("ITL ms", "p99"), min, scale=1e3),
    Metric("e2e_p50_s", ("E2E s", "p50"), min),
    Metric("max_service_gap", ("gap, total", "tokens"), min),
    Metric("max_extended_service_gap", ("gap, ext.", "tokens"), min),
    Metric("jain_index", ("Jain", "index"), max, decimals=3),
    Metric("fair_share_distance", ("unfair", "share"), min, decimals=3),
    Metric("preemptions", ("", "preempted"), min),
    Metric("refused", ("", "refused"), min),
    Metric("skipped_lines", ("skipped", "lines"), min),
)


def comparison_table(comparison: Comparison, baseline: str | None = None) -> str:
    """A table of at most 100 columns, stacked if need be, with notes below.

    Several seeds are averaged, with a 95 % confidence interval. What is the same in every row goes
    into a note; what nobody measured is left out. baseline: a label; a second table shows what the
    others gain over it, paired by seed. ValueError if there is no such label.
    """
    labels = list(comparison.groups)
    if baseline is not None and baseline not in labels:
        raise ValueError(f"baseline={baseline!r}: one of {', '.join(labels)} is needed")
    means = {
        metric: [comparison.interval(label, metric.column) for label in labels]
        for metric in METRICS
        if metric.column in next(iter(comparison.groups.values()))
    }
    shown = {m: cells for m, cells in means.items() if m.always or _varies(cells)}
    constant = {m: c[0].mean for m, c in means.items() if m not in shown}
    heading = " ".join(comparison.by)
    names = [_name(comparison, label) for label in labels]
    parts = [_stack(heading, names, [_column(m, cells, mark=True) for m, cells in shown.items()])]
    if baseline is not None and len(labels) > 1:
        others = [label for label in labels if label != baseline]
        columns = [
            _column(m, [comparison.difference(o, baseline, m.column) for o in others], mark=False)
            for m in shown
        ]
        names = [_name(comparison, label) for label in others]
        parts.append(_stack(f"less {baseline}", names, columns))
    return "\n\n".join([*parts, "\n".join(_notes(comparison, constant))]) + "\n"


def _name(comparison: Comparison, label: str) -> str:
    """The label, cut to size and marked."""
    mark = comparison.mark(label)
    room = MAX_LABEL - len(mark)
    return (label if len(label) <= room else label[: room - 3] + "...") + mark


def _varies(cells: Sequence[Interval]) -> bool:
    """Whether a column tells rows apart; in a single row, whether it says anything."""
    if len(cells) == 1:
        return cells[0].mean != 0 and not math.isnan(cells[0].mean)
    first = cells[0].mean
    # Means of the same numbers may differ in their last bit.
    return any(
        not math.isclose(cell.mean, first) and not (math.isnan(cell.mean) and math.isnan(first))
        for cell in cells
    )


def _column(metric: Metric, cells: Sequence[Interval], *, mark: bool) -> list[str]:
    """Two lines of heading, then one cell a row, padded to one width.

    mark: star the best; otherwise the cells are differences and show their sign.
    """
    scaled = [Interval(*(metric.scale * value for value in cell)) for cell in cells]
    known = [cell.mean for cell in scaled if not math.isnan(cell.mean)]
    decimals = metric.decimals
    if decimals is None:
        largest = max(map(abs, known), default=0.0)
        whole = all(value == int(value) for value in known)
        decimals = 0 if whole or largest >= 1000 else 1 if largest >= 100 else 2
    sign = "" if mark else "+"
    texts = ["-" if math.isnan(c.mean) else f"{c.mean:{sign},.{decimals}f}" for c in scaled]
    best = f"{metric.best(known):,.{decimals}f}" if mark and metric.best and known else None
    starred = best is not None and len(cells) > 1
    spreads = [
        "" if math.isnan(cell.half_width) else f" ±{cell.half_width:,.{decimals}f}"
        for cell in scaled
    ]
    spread_width = max(map(len, spreads))
    lines = [
        text + spread.rjust(spread_width) + ("*" if text == best else " ") * starred
        for text, spread in zip(texts, spreads, strict=True)
    ]
    # A heading stands over the numbers, not over the room for the star.
    headings = [line + " " * starred for line in metric.heading]
    width = max(map(len, [*headings, *lines]))
    return [line.rjust(width) for line in [*headings, *lines]]


def _stack(heading: str, labels: Sequence[str], columns: Sequence[Sequence[str]]) -> str:
    """Tables one below the other, each with the labels at the left."""
    heading = heading if len(heading) <= MAX_LABEL else heading[: MAX_LABEL - 3] + "..."
    names = ["", heading, *labels]
    width = max(map(len, names))
    left = [name.ljust(width) for name in names]
    blocks: list[list[Sequence[str]]] = [[left]]
    used = width
    for column in columns:
        if used + len(_GAP) + len(column[0]) > MAX_WIDTH and len(blocks[-1]) > 1:
            blocks.append([left])
            used = width
        blocks[-1].append(column)
        used += len(_GAP) + len(column[0])
    return "\n\n".join(
        "\n".join(_GAP.join(cells).rstrip() for cells in _ruled(block)) for block in blocks
    )


def _ruled(block: Sequence[Sequence[str]]) -> list[list[str]]:
    rows = [list(row) for row in zip(*block, strict=True)]
    return [*rows[:2], ["-" * len(column[0]) for column in block], *rows[2:]]


def _notes(comparison: Comparison, constant: dict[Metric, float]) -> list[str]:
    notes = ["* best of its column"] if len(comparison.groups) > 1 else []
    notes += [ORACLE_NOTE] if comparison.oracles else []
    seeds = [len(group) for group in comparison.groups.values()]
    if max(seeds) > 1:
        number = f"{min(seeds)}" if min(seeds) == max(seeds) else f"{min(seeds)} to {max(seeds)}"
        notes.append(f"± 95 % confidence interval of the mean over {number} seeds")
    for metric, value in constant.items():
        if not math.isnan(value):
            name = " ".join(metric.heading).strip()
            text = f"{metric.scale * value:,.{metric.decimals or 2}f}"
            notes.append(f"{name}: {text.rstrip('0').rstrip('.')}")
    return notes
