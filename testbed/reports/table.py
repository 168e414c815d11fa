"""Runs side by side on a terminal."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

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

    @property
    def name(self) -> str:
        """Both lines of the heading in one."""
        return " ".join(self.heading).strip()

    def text(self, value: float) -> str:
        """One value by itself, not yet scaled, without trailing zeros."""
        return f"{self.scale * value:,.{self.decimals or 2}f}".rstrip("0").rstrip(".")


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
    # Rows of one workload together: only they are rivals.
    rivals = comparison.rivals()
    labels = [label for some in rivals for label in some]
    baselines = {} if baseline is None else comparison.baselines(baseline)
    shown, constant = told_apart(comparison, labels)
    heading = " ".join(comparison.by)
    names = [row_name(comparison, label) for label in labels]
    sizes = [len(some) for some in rivals]
    columns = [_column(m, cells, sizes) for m, cells in shown.items()]
    parts = [_stack(heading, names, columns, sizes)]
    others = [label for label in labels if baselines.get(label, label) != label]
    if others:
        columns = [
            _column(m, [comparison.difference(o, baselines[o], m.column) for o in others])
            for m in shown
        ]
        names = [row_name(comparison, label) for label in others]
        sizes = [len([label for label in some if label in others]) for some in rivals]
        parts.append(_stack(f"less {baseline}", names, columns, sizes))
    return "\n\n".join([*parts, "\n".join(_notes(comparison, constant))]) + "\n"


def told_apart(
    comparison: Comparison, labels: Sequence[str]
) -> tuple[dict[Metric, list[Interval]], dict[Metric, float]]:
    """The metrics that tell rows apart, with a cell for each label, and the others' one value."""
    means = {
        metric: [comparison.interval(label, metric.column) for label in labels]
        for metric in METRICS
        if metric.column in next(iter(comparison.groups.values()))
    }
    shown = {m: cells for m, cells in means.items() if m.always or _varies(cells)}
    return shown, {m: cells[0].mean for m, cells in means.items() if m not in shown}


def row_name(comparison: Comparison, label: str) -> str:
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


def _column(metric: Metric, cells: Sequence[Interval], rivals: Sequence[int] = ()) -> list[str]:
    """Two lines of heading, then one cell a row, padded to one width.

    rivals: how many rows, one set after the other, are compared with each other: the best of each
    set gets a star. Without, the cells are differences and show their sign.
    """
    scaled = [Interval(*(metric.scale * value for value in cell)) for cell in cells]
    decimals = decimals_of(metric, [cell.mean for cell in scaled])
    sign = "" if rivals else "+"
    texts = ["-" if math.isnan(c.mean) else f"{c.mean:{sign},.{decimals}f}" for c in scaled]
    stars = best_places(metric, [cell.mean for cell in scaled], decimals, rivals)
    spreads = [
        "" if math.isnan(cell.half_width) else f" ±{cell.half_width:,.{decimals}f}"
        for cell in scaled
    ]
    spread_width = max(map(len, spreads))
    lines = [
        text + spread.rjust(spread_width) + ("*" if place in stars else " ") * bool(stars)
        for place, (text, spread) in enumerate(zip(texts, spreads, strict=True))
    ]
    # A heading stands over the numbers, not over the room for the star.
    headings = [line + " " * bool(stars) for line in metric.heading]
    width = max(map(len, [*headings, *lines]))
    return [line.rjust(width) for line in [*headings, *lines]]


def decimals_of(metric: Metric, values: Sequence[float]) -> int:
    """How many decimals show scaled values of a metric well; NaN counts for nothing."""
    if metric.decimals is not None:
        return metric.decimals
    known = [value for value in values if not math.isnan(value)]
    largest = max(map(abs, known), default=0.0)
    whole = all(value == int(value) for value in known)
    return 0 if whole or largest >= 1000 else 1 if largest >= 100 else 2


def best_places(
    metric: Metric, values: Sequence[float], decimals: int, rivals: Sequence[int]
) -> set[int]:
    """The places of the best value, and of all that look like it, in each set of two or more."""
    places: set[int] = set()
    start = 0
    for size in rivals:
        here = {i: values[i] for i in range(start, start + size) if not math.isnan(values[i])}
        start += size
        if metric.best is not None and size > 1 and here:
            best = f"{metric.best(list(here.values())):.{decimals}f}"
            equal = {i for i, value in here.items() if f"{value:.{decimals}f}" == best}
            # Where all are equal, none leads.
            places |= equal if len(equal) < len(here) else set()
    return places


def _stack(
    heading: str, labels: Sequence[str], columns: Sequence[Sequence[str]], sizes: Sequence[int]
) -> str:
    """Tables one below the other, each with the labels at the left.

    sizes: how many rows stand together; a blank line parts them from the next.
    """
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
    ends = sorted({*accumulate(sizes)} - {0, len(labels)}) if max(sizes) > 1 else []
    return "\n\n".join(
        "\n".join(_GAP.join(cells).rstrip() for cells in _ruled(block, ends)) for block in blocks
    )


def _ruled(block: Sequence[Sequence[str]], ends: Sequence[int]) -> list[list[str]]:
    heading, rule = 2, ["-" * len(column[0]) for column in block]
    rows = [list(row) for row in zip(*block, strict=True)]
    for end in reversed(ends):
        rows.insert(heading + end, [""])
    return [*rows[:heading], rule, *rows[heading:]]


def _notes(comparison: Comparison, constant: dict[Metric, float]) -> list[str]:
    rivals = comparison.rivals()
    notes = []
    if max(map(len, rivals)) > 1:
        among = ", among the rows of its workload" if len(rivals) > 1 else ""
        notes.append(f"* best of its column{among}")
    notes += [ORACLE_NOTE] if comparison.oracles else []
    seeds = [len(comparison.samples(label)) for label in comparison.groups]
    notes += comparison.seed_notes()
    if max(seeds) > 1:
        number = f"{min(seeds)}" if min(seeds) == max(seeds) else f"{min(seeds)} to {max(seeds)}"
        notes.append(f"± 95 % confidence interval of the mean over {number} seeds")
    known = {metric: value for metric, value in constant.items() if not math.isnan(value)}
    return notes + [f"{m.name}: {m.text(value)}" for m, value in known.items()]
