"""Which runs of two folders go together: equal options, equal seed, equal workload."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from testbed.metrics.loading import Results

WORKLOAD_OPTIONS = ("workload", "arrivals", "requests", "rate")
"""Options, or groups of them, that say what is asked and when; the last two are an engine run's."""
NO_SETTING = ("run", "seed", "record", "check", "output", "inputs", "experiment")
"""Options, or groups of them, that do not make one system another."""


@dataclass(frozen=True)
class Pairs:
    """Runs before and after some change, paired.

    by: the options that make a label. rows: by label, the summaries before and after, with the same
    index: the seeds that both have. changed: options that are one thing in all runs before and
    another in all runs after, with both values. alone: the runs without a partner, in words.
    """

    by: tuple[str, ...]
    rows: dict[str, tuple[pd.DataFrame, pd.DataFrame]]
    changed: dict[str, tuple[str, str]]
    alone: tuple[str, ...]


def pair_runs(before: Results, after: Results, by: Sequence[str] = ()) -> Pairs:
    """Pair each run before with the run after of the same options and seed.

    by: the options that must agree; by default the overrides that differ between the runs of
    either side. ValueError if one is unknown, if two runs of a side are alike, if nothing pairs,
    or if the two runs of a pair serve different workloads.
    """
    sides = [_options(before), _options(after)]
    for name in by:
        if not any(name in side for side in sides):
            known = ", ".join(dict.fromkeys([*sides[0], *sides[1]]))
            raise ValueError(f"by={name!r}: one of the options is needed: {known}")
    overrides = dict.fromkeys([*before.overrides, *after.overrides])
    chosen = tuple(by) or tuple(
        name
        for name in overrides
        if name not in NO_SETTING and any(len(set(_texts(side, name))) > 1 for side in sides)
    )
    keys = [_keys(side, chosen) for side in sides]
    common = [key for key in keys[0] if key in keys[1]]
    if not common:
        raise ValueError(
            f"nothing to pair: {_shown(keys[0])} before, {_shown(keys[1])} after; runs of the same "
            f"{' and '.join((*chosen, 'seed'))} are needed"
        )
    for key in common:
        runs = keys[0][key], keys[1][key]
        _check_workloads(before.configs[runs[0]], after.configs[runs[1]], runs)
    rows: dict[str, tuple[pd.DataFrame, pd.DataFrame]] = {}
    for label in dict.fromkeys(label for label, _ in common):
        seeds = sorted(seed for other, seed in common if other == label)
        first, second = (
            results.summary.set_index("run")
            .loc[[own[label, seed] for seed in seeds]]
            .set_index("seed")
            for results, own in zip((before, after), keys, strict=True)
        )
        rows[label] = (first, second)
    alone = tuple(
        f"{label or 'run'} seed {seed} ({when})"
        for own, other, when in ((keys[0], keys[1], "before"), (keys[1], keys[0], "after"))
        for label, seed in own
        if (label, seed) not in other
    )
    return Pairs(chosen, rows, _changed(sides, chosen), alone)


def workload_identity(config: Mapping[str, Any]) -> str:
    """A text that is the same for runs that were asked the same, but for their seeds."""
    asked = {name: config.get(name) for name in WORKLOAD_OPTIONS}
    inputs = config.get("inputs") or {}
    return json.dumps([_without_seeds(asked), inputs.get("workload")], sort_keys=True, default=str)


def is_of_workload(option: str) -> bool:
    """Whether an option, by its dotted name, is one of the workload."""
    return option.partition(".")[0] in WORKLOAD_OPTIONS


def text_of(value: Any) -> str:
    """An option's value in a label; `-` where a run does not have it."""
    if is_missing(value):
        return "-"
    # Where a run lacks the option, pandas has turned the others' integers into floats.
    return str(int(value) if isinstance(value, float) and value.is_integer() else value)


def rank_of(value: Any) -> tuple[int, float, str]:
    """Numbers by size, then texts, then options that a run does not have."""
    if is_missing(value):
        return (2, 0.0, "")
    if isinstance(value, bool) or not isinstance(value, int | float):
        return (1, 0.0, str(value))
    return (0, float(value), "")


def is_missing(value: Any) -> bool:
    """None, or pandas' NaN for an option that a run does not have."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def _options(results: Results) -> pd.DataFrame:
    """One row a run: every option, a group's choice where it was overridden."""
    return results.config.assign(**{name: results.summary[name] for name in results.overrides})


def _texts(options: pd.DataFrame, name: str) -> list[str]:
    return [text_of(value) for value in options[name]] if name in options else ["-"]


def _keys(options: pd.DataFrame, by: Sequence[str]) -> dict[tuple[str, int], str]:
    """The run of each label and seed."""
    keys: dict[tuple[str, int], str] = {}
    for place, (run, seed) in enumerate(zip(options["run"], options["seed"], strict=True)):
        texts = [_texts(options, name) for name in by]
        label = " ".join(column[place] if len(column) > 1 else column[0] for column in texts)
        key = (label, int(seed))
        if key in keys:
            raise ValueError(
                f"runs {keys[key]} and {run} are both {label!r} with seed {seed}; "
                "an option that tells them apart is needed in --by"
            )
        keys[key] = str(run)
    return keys


def _shown(keys: Mapping[tuple[str, int], str]) -> str:
    few = [f"{label} seed {seed}".strip() for label, seed in list(keys)[:4]]
    return ", ".join(few) + (f" and {len(keys) - 4} more" if len(keys) > 4 else "")


def _check_workloads(
    before: Mapping[str, Any], after: Mapping[str, Any], runs: tuple[str, str]
) -> None:
    if workload_identity(before) == workload_identity(after):
        return
    inputs = [(config.get("inputs") or {}).get("workload") for config in (before, after)]
    found = [
        difference
        for name in WORKLOAD_OPTIONS
        for difference in _differences(before.get(name), after.get(name), name)
        if not difference[0].endswith("seed")
    ]
    name, first, second = found[0] if found else ("the file of the workload", *inputs)
    raise ValueError(
        f"{name} is {first} in run {runs[0]} before and {second} in run "
        f"{runs[1]} after: only runs of one workload can be paired"
    )


def _differences(before: Any, after: Any, path: str) -> list[tuple[str, Any, Any]]:
    """Dotted names whose values differ, with both values."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        return [
            found
            for name in dict.fromkeys([*before, *after])
            for found in _differences(before.get(name), after.get(name), f"{path}.{name}")
        ]
    return [] if before == after else [(path, before, after)]


def _changed(sides: Sequence[pd.DataFrame], by: Sequence[str]) -> dict[str, tuple[str, str]]:
    changed = {}
    for name in dict.fromkeys([*sides[0], *sides[1]]):
        parts = name.split(".")
        if parts[0] in NO_SETTING or parts[-1] in ("seed", "_target_") or name in by:
            continue
        first, second = (set(_texts(side, name)) for side in sides)
        if len(first) == len(second) == 1 and first != second:
            changed[name] = (first.pop(), second.pop())
    return changed


def _without_seeds(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_seeds(v) for key, v in value.items() if key != "seed"}
    return [_without_seeds(v) for v in value] if isinstance(value, list) else value
