"""Which runs of two folders go together: equal options, equal seed, equal workload."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

import pandas as pd

from testbed.metrics.loading import Results

WORKLOAD_OPTIONS = ("workload", "arrivals", "requests", "rate")
"""Options, or groups of them, that say what is asked and when; the last two are an engine run's."""
MAX_OFFERED = 8
"""Options that an error message names."""
SAME_PROMPTS = (
    "the same prompts under every seed: an interval tells what arrivals, policies and clocks do, "
    "not what other prompts would"
)
NO_SETTING = ("run", "seed", "record", "check", "output", "inputs", "experiment")
"""Options, or groups of them, that do not make one system another."""


@dataclass(frozen=True)
class Pairs:
    """Runs before and after some change, paired.

    by: the options that make a label. rows: by label, the summaries before and after, with the same
    index: the seeds that both have, one of those between which nothing random differs. changed:
    options that are one thing in all runs before and another in all runs after, with both values.
    missing, new: the runs before without a partner after, and the other way round, in words.
    repeats: by label, the seeds left out because they draw what an earlier one draws. one_workload:
    the labels whose pairs were all asked the same prompts, whatever the seed.
    """

    by: tuple[str, ...]
    rows: dict[str, tuple[pd.DataFrame, pd.DataFrame]]
    changed: dict[str, tuple[str, str]]
    missing: tuple[str, ...] = ()
    new: tuple[str, ...] = ()
    repeats: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    one_workload: tuple[str, ...] = ()


def pair_runs(before: Results, after: Results, by: Sequence[str] = ()) -> Pairs:
    """Pair each run before with the run after of the same options and seed.

    by: the options that must agree; by default the overrides that differ between the runs of
    either side. ValueError if one is unknown, if two runs of a side are alike, if nothing pairs,
    or if the two runs of a pair serve different workloads, be it only by the workload's seeds.
    """
    sides = [_options(before), _options(after)]
    overrides = list(dict.fromkeys([*before.overrides, *after.overrides]))
    for name in by:
        check_option(name, dict.fromkeys([*sides[0], *sides[1]]), overrides)
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
    drawn, asked = (draws(before), draws(after)), asked_draws(before)
    repeats: dict[str, tuple[int, ...]] = {}
    one_workload: list[str] = []
    for label in dict.fromkeys(label for label, _ in common):
        shared = sorted(seed for other, seed in common if other == label)
        runs_of = {seed: (keys[0][label, seed], keys[1][label, seed]) for seed in shared}
        seeds = first_of_each(shared, (_joined(drawn, runs_of[seed]) for seed in shared))
        if len(seeds) < len(shared):
            repeats[label] = tuple(seed for seed in shared if seed not in seeds)
        if len(seeds) > 1 and len({asked[runs_of[seed][0]] for seed in seeds}) == 1:
            one_workload.append(label)
        first, second = (
            results.summary.set_index("run")
            .loc[[own[label, seed] for seed in seeds]]
            .set_index("seed")
            for results, own in zip((before, after), keys, strict=True)
        )
        rows[label] = (first, second)
    missing, new = (
        tuple(f"{label or 'run'} seed {seed}" for label, seed in own if (label, seed) not in other)
        for own, other in (keys, reversed(keys))
    )
    changed = _changed(sides, chosen)
    return Pairs(chosen, rows, changed, missing, new, repeats, tuple(one_workload))


def draws(results: Results) -> dict[str, tuple[str, str]]:
    """By run, what is drawn in it and what came out: two runs that share either are one sample.

    A simulation draws from the seeds in its groups of options, not from the run's own. Some of
    these change nothing either, a trace's token ids for one, which shows in equal numbers. Two
    measurements are never the same.
    """
    options = {"run", "seed", *results.overrides}
    numbers = results.summary.set_index("run").drop(columns=options - {"run"})
    found = {}
    for run, config, manifest in zip(
        results.folders, results.configs.values(), results.manifests.values(), strict=True
    ):
        own = json.dumps(["run", run])
        came_out = numbers.loc[run].to_json() if len(numbers.columns) else own
        if "device" in manifest:
            found[run] = (own, own)
        else:
            groups = {name: value for name, value in config.items() if name != "seed"}
            found[run] = (_drawn(config, manifest["seed"], groups), came_out)
    return found


def asked_draws(results: Results) -> dict[str, str]:
    """By run, a text that is the same where nothing random in its workload differs."""
    return {
        run: _drawn(config, results.manifests[run]["seed"], {"": config.get("workload")})
        for run, config in results.configs.items()
    }


def first_of_each(seeds: Iterable[int], drawn: Iterable[tuple[str, ...]]) -> list[int]:
    """The seeds, in order, less those that share one of their texts with an earlier one."""
    kept: list[int] = []
    known: list[tuple[str, ...]] = []
    for seed, texts in zip(seeds, drawn, strict=True):
        if not any(a == b for other in known for a, b in zip(texts, other, strict=True)):
            kept.append(seed)
            known.append(texts)
    return kept


def check_option(name: str, known: Iterable[Any], overrides: Sequence[str]) -> None:
    """ValueError if an option is not known; it offers what is near, and what was overridden."""
    names = list(map(str, known))
    if name in names:
        return
    near = get_close_matches(name, names, n=3)
    offered = list(dict.fromkeys([*near, *overrides, *names]))
    rest = f" and {len(offered) - MAX_OFFERED} more" if len(offered) > MAX_OFFERED else ""
    raise ValueError(
        f"by={name!r}: one of the options is needed: {', '.join(offered[:MAX_OFFERED])}{rest}"
    )


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
    inputs = [(config.get("inputs") or {}).get("workload") for config in (before, after)]
    found = [
        difference
        for name in WORKLOAD_OPTIONS
        for difference in _differences(before.get(name), after.get(name), name)
    ]
    if inputs[0] != inputs[1]:
        found.append(("the file of the workload", inputs[0], inputs[1]))
    if not found:
        return
    name, first, second = found[0]
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
        if parts[0] in NO_SETTING or parts[-1] == "_target_" or name in by:
            continue
        first, second = (set(_texts(side, name)) for side in sides)
        if len(first) == len(second) == 1 and first != second:
            changed[name] = (first.pop(), second.pop())
    return changed


def _without_seeds(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_seeds(v) for key, v in value.items() if key != "seed"}
    return [_without_seeds(v) for v in value] if isinstance(value, list) else value


def _seeds(value: Any, path: str = "") -> list[tuple[str, Any]]:
    """Every option named seed, by its dotted name."""
    if isinstance(value, Mapping):
        return [
            found
            for key, part in value.items()
            for found in (
                [(f"{path}.{key}", part)] if key == "seed" else _seeds(part, f"{path}.{key}")
            )
        ]
    if isinstance(value, list):
        return [found for i, part in enumerate(value) for found in _seeds(part, f"{path}.{i}")]
    return []


def _drawn(config: Mapping[str, Any], seed: int, options: Mapping[str, Any]) -> str:
    """The seeds among the options; the run's own where the config says no more than a name."""
    if not isinstance(config.get("workload"), Mapping):
        return json.dumps(["seed", seed])
    return json.dumps(_seeds(options))


def _joined(drawn: Sequence[Mapping[str, tuple[str, str]]], runs: Sequence[str]) -> tuple[str, ...]:
    """What is drawn on both sides of a pair, and what came out on both."""
    texts = [own[run] for own, run in zip(drawn, runs, strict=True)]
    return tuple("\n".join(both) for both in zip(*texts, strict=True))
