"""What was asked, in a sentence: the title of the page and the facts below it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from testbed.metrics.loading import Results
from testbed.metrics.pairing import is_missing, rank_of, text_of
from testbed.reports.comparison import Comparison

MAX_NAMED = 6
"""More values of an option than these are counted, not named."""


def title(comparison: Comparison) -> str:
    """What is compared, as a headline."""
    labels = list(comparison.groups)
    if len(labels) == 1:
        return f"One setting: {labels[0]}"
    if len(labels) <= MAX_NAMED:
        return f"{listed(labels)} compared"
    return f"{len(labels)} settings of {listed(comparison.by)} compared"


def question(results: Results, comparison: Comparison) -> str:
    """What the runs were made to find out."""
    if len(comparison.groups) == 1:
        return "How does this setting serve its workload, and how far is it from what was possible?"
    options = results.config.assign(**{name: results.summary[name] for name in results.overrides})
    axes = []
    for name in comparison.by:
        values = distinct(options[name])
        shown = listed(values) if len(values) <= MAX_NAMED else f"{len(values)} values"
        axes.append(f"{name} ({shown})")
    verb = "does" if len(axes) == 1 else "do"
    return f"What {verb} {listed(axes)} change in reuse, latency, throughput and fairness?"


def facts(results: Results, comparison: Comparison) -> list[tuple[str, str]]:
    """Name and value of what a reader needs to know of all runs."""
    seeds = sorted({int(seed) for group in comparison.groups.values() for seed in group.index})
    requests = [int(n) for n in results.summary["requests"]] if _has(results, "requests") else []
    found = [
        ("Runs", f"{len(results.folders):,}: {_settings(comparison)}"),
        ("Seeds", ", ".join(map(str, seeds)) if len(seeds) <= 12 else f"{len(seeds)} of them"),
    ]
    for name in ("workload", "arrivals", "model", "hardware", "replicas", "eviction", "routing"):
        values = _values(results, name)
        if values and name not in comparison.by:
            found.append((name.capitalize(), listed(values[:MAX_NAMED])))
    if requests:
        found.append(("Requests a run", _span(requests)))
    found.append(("Step times", _clock(results)))
    machines = [str(m.get("hardware")) for m in results.manifests.values() if was_measured(m)]
    if machines:
        found.append(("Measured on", listed(distinct(machines))))
    return found


def distinct(values: Iterable[Any]) -> list[str]:
    """The different values as texts, in order."""
    return list(dict.fromkeys(text_of(value) for value in sorted(values, key=rank_of)))


def listed(items: Sequence[str]) -> str:
    """a, b and c."""
    return " and ".join([*([", ".join(items[:-1])] if len(items) > 1 else []), *items[-1:]])


def was_measured(manifest: dict[str, Any]) -> bool:
    """Whether the run was the engine's, on real hardware; a simulation has no device."""
    return "device" in manifest


def _settings(comparison: Comparison) -> str:
    counts = sorted({len(group) for group in comparison.groups.values()})
    number = len(comparison.groups)
    rows = f"{number} setting{'s' * (number > 1)}"
    each = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"{rows}, {each} seed{'s' * (counts[-1] > 1)} each"


def _values(results: Results, name: str) -> list[str]:
    """The distinct values of an option: of a group its choice, or its name."""
    if name in results.overrides:
        column = results.summary[name]
    else:
        known = next((n for n in (name, f"{name}.name") if n in results.config), None)
        if known is None:
            return []
        column = results.config[known]
    return distinct(v for v in column if not is_missing(v))


def _clock(results: Results) -> str:
    kinds = {was_measured(manifest) for manifest in results.manifests.values()}
    if kinds == {True}:
        return "measured on the engine"
    return "simulated by a latency model" if kinds == {False} else "some measured, some simulated"


def _has(results: Results, column: str) -> bool:
    return column in results.summary


def _span(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
