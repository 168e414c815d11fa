"""The tables of the page: results, configuration, runs, and what the metrics mean."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from testbed.metrics.intervals import Interval
from testbed.metrics.loading import Results, commit_of
from testbed.metrics.pairing import is_missing, is_of_workload, text_of
from testbed.metrics.summary import SUMMARY_COLUMNS
from testbed.reports.comparison import Comparison
from testbed.reports.page.markup import MISSING, Markup, element, joined, markup, table
from testbed.reports.page.words import distinct
from testbed.reports.table import METRICS, Metric, best_places, decimals_of, told_apart

NOT_SHOWN = ("run", "seed", "output")


def results_table(comparison: Comparison) -> Markup:
    """A row a setting, those of one workload together, and a note of what is the same in all."""
    rivals = comparison.rivals()
    labels = [label for some in rivals for label in some]
    shown, constant = told_apart(comparison, labels)
    columns = [_column(m, cells, [len(some) for some in rivals]) for m, cells in shown.items()]
    heads = [joined(filter(None, metric.heading), Markup("<br>")) for metric in shown]
    of_workload = [name for name in comparison.by if is_of_workload(name)]
    grouped = bool(of_workload) and any(len(some) > 1 for some in rivals)
    rows: list[Sequence[Any]] = []
    place = 0
    for some in rivals:
        if grouped:
            rows.append([f"{' '.join(of_workload)} {comparison.workloads[some[0]]}"])
        for label in some:
            name = (comparison.entries[label] if grouped else label) + comparison.mark(label)
            rows.append([name, *(column[place] for column in columns)])
            place += 1
    seeds = {len(comparison.samples(label)) for label in comparison.groups}
    interval = "; ± is a 95 % confidence interval of the mean over seeds" if max(seeds) > 1 else ""
    caption = f"Results by {', '.join(comparison.by)}{interval}"
    same = [(m.name, m.text(v)) for m, v in constant.items() if not math.isnan(v)]
    note = "; ".join(f"{name} {value}" for name, value in same)
    heading = " ".join(n for n in comparison.by if not (grouped and n in of_workload))
    parts = [table(caption, [heading, *heads], rows)]
    if any(len(some) > 1 for some in rivals):
        parts.append(element("p", "Bold: best of its workload.", class_="note"))
    if note:
        parts.append(element("p", f"The same everywhere: {note}.", class_="note"))
    return joined(parts, "\n")


def configuration_table(results: Results) -> Markup:
    """The options that are the same in all runs, by group; before them, those that differ."""
    config = results.config
    same: dict[str, list[tuple[str, str]]] = {}
    differing: list[tuple[str, str]] = []
    for name in config:
        if name in NOT_SHOWN or str(name).rpartition(".")[2] in ("_target_", "seed"):
            continue
        values = distinct(config[name])
        group, dot, rest = str(name).partition(".")
        if len(values) > 1:
            differing.append((str(name), ", ".join(values[:8]) + ", ..." * (len(values) > 8)))
        elif not all(is_missing(value) for value in config[name]):
            same.setdefault(group, []).append((rest if dot else "", _short(config[name].iloc[0])))
    rows: list[Sequence[Any]] = []
    for group, options in same.items():
        text = ", ".join(f"{rest} {value}".strip() for rest, value in options)
        rows.append([group, text])
    parts = []
    if differing:
        parts.append(
            table("What differs between the runs", ["option", "values"], differing, texts=2)
        )
    parts.append(table("What all runs have in common", ["group", "options"], rows, texts=2))
    return joined(parts, "\n")


def runs_table(results: Results, comparison: Comparison) -> Markup:
    """One row a run: where it is and where it comes from."""
    summary = results.summary.set_index("run")
    labels = {run: label for label, group in comparison.groups.items() for run in group["run"]}
    rows = []
    for run, manifest in results.manifests.items():
        rows.append(
            [
                run,
                labels[run],
                manifest["seed"],
                _number(summary.loc[run].get("finished"), 0),
                _number(summary.loc[run].get("hit_rate"), 3),
                _number(summary.loc[run].get("makespan_s"), 0),
                _number(manifest.get("wall_seconds"), 1),
                commit_of(manifest),
            ]
        )
    heads = [
        "run",
        " ".join(comparison.by),
        "seed",
        "finished",
        "hit rate",
        "makespan s",
        "took s",
        "commit",
    ]
    return table("The runs", heads, rows, texts=2)


def glossary(comparison: Comparison) -> Markup:
    """What each column of the results means, in the words of the schema."""
    known = next(iter(comparison.groups.values()))
    entries = [
        (metric.name, SUMMARY_COLUMNS[metric.column])
        for metric in METRICS
        if metric.column in known and not known[metric.column].isna().all()
    ]
    return element(
        "dl",
        *(part for name, text in entries for part in (element("dt", name), element("dd", text))),
    )


def _column(metric: Metric, cells: Sequence[Interval], rivals: Sequence[int]) -> list[Markup]:
    means = [metric.scale * cell.mean for cell in cells]
    decimals = decimals_of(metric, means)
    best = best_places(metric, means, decimals, rivals)
    column = []
    for place, (mean, cell) in enumerate(zip(means, cells, strict=True)):
        text = markup(_number(mean, decimals))
        if place in best:
            text = element("strong", text)
        if not math.isnan(cell.half_width):
            spread = f"±{metric.scale * cell.half_width:,.{decimals}f}"
            text = joined((text, " ", element("span", spread, class_="spread")))
        column.append(text)
    return column


def _short(value: Any) -> str:
    """An option's value, large quantities in powers of ten."""
    large = isinstance(value, float) and abs(value) >= 1e7
    return f"{value:g}" if large else text_of(value)


def _number(value: Any, decimals: int) -> str:
    if value is None or math.isnan(value):
        return MISSING
    return f"{value:,.{decimals}f}"
