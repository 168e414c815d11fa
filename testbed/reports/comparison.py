"""Which runs belong together: one configuration with all its seeds is one row of a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from testbed.metrics.intervals import Interval, mean_interval
from testbed.metrics.loading import Results
from testbed.metrics.pairing import (
    SAME_PROMPTS,
    asked_draws,
    check_option,
    draws,
    first_of_each,
    is_of_workload,
    rank_of,
    text_of,
    workload_identity,
)

ORACLE_NOTE = "† oracle: it is told what no real system knows"


@dataclass(frozen=True)
class Comparison:
    """by: the options that make a label. groups: summaries by label, each indexed by seed.

    oracles: the labels of runs with a policy that was told what no real system knows. workloads:
    by label, a name for the workload; only rows with the same one are rivals. entries: by label,
    what is left of it without the options of the workload. draws, asked: by label and seed, texts
    that tell samples apart, as testbed.metrics.pairing makes them of runs, and of what these were
    asked.
    """

    by: tuple[str, ...]
    groups: dict[str, pd.DataFrame]
    oracles: frozenset[str] = frozenset()
    workloads: Mapping[str, str] = field(default_factory=dict)
    entries: Mapping[str, str] = field(default_factory=dict)
    draws: Mapping[str, Mapping[int, tuple[str, str]]] = field(default_factory=dict)
    asked: Mapping[str, Mapping[int, str]] = field(default_factory=dict)

    def mark(self, label: str) -> str:
        """A dagger for an oracle's label, else nothing."""
        return "†" if label in self.oracles else ""

    def rivals(self) -> list[list[str]]:
        """The labels, those with the same workload together."""
        by_workload: dict[str, list[str]] = {}
        for label in self.groups:
            by_workload.setdefault(self.workloads.get(label, ""), []).append(label)
        return list(by_workload.values())

    def baselines(self, name: str) -> dict[str, str]:
        """By label, the row of its workload that `name` stands for: a label, or its entry.

        Raises ValueError if there is no such row anywhere.
        """
        found: dict[str, str] = {}
        for labels in self.rivals():
            named = [x for x in labels if name in (x, self.entries.get(x))]
            found |= {label: named[0] for label in labels if named}
        if not found:
            known = dict.fromkeys([*self.groups, *self.entries.values()])
            raise ValueError(f"baseline={name!r}: one of {', '.join(known)} is needed")
        return found

    def interval(self, label: str, metric: str) -> Interval:
        """The metric's mean over the samples of one label."""
        return mean_interval(self.groups[label].loc[self.samples(label), metric].to_numpy())

    def difference(self, label: str, baseline: str, metric: str) -> Interval:
        """Mean of label less baseline, over the seeds that both have, paired by seed."""
        paired = self.groups[label][metric] - self.groups[baseline][metric]
        return mean_interval(paired.loc[self.samples(label, baseline)].to_numpy())

    def samples(self, *labels: str) -> list[int]:
        """The seeds that all of the labels have, less those that change nothing."""
        seeds = [
            seed
            for seed in self.groups[labels[0]].index
            if all(seed in self.groups[label].index for label in labels)
        ]
        if not all(label in self.draws for label in labels):
            return seeds
        texts = ([self.draws[label][seed] for label in labels] for seed in seeds)
        joined = (tuple("\n".join(each) for each in zip(*all_, strict=True)) for all_ in texts)
        return first_of_each(seeds, joined)

    def seed_notes(self) -> list[str]:
        """What the seeds do not do, in the rows that were run with several."""
        rows = [label for label, group in self.groups.items() if len(group) > 1]
        repeated = [x for x in rows if len(self.samples(x)) < len(self.groups[x])]
        fixed = [
            x
            for x in rows
            if len(self.samples(x)) > 1
            and len({self.asked.get(x, {}).get(seed, seed) for seed in self.samples(x)}) == 1
        ]
        return [
            f"{text} ({len(found)} of {len(self.groups)} rows)"
            for found, text in (
                (repeated, "seeds that change nothing count once"),
                (fixed, SAME_PROMPTS),
            )
            if found
        ]


def compare(results: Results, by: Sequence[str] = ()) -> Comparison:
    """Group runs by the options in `by`, in order of their values.

    by: names of testbed.load(...).config columns, or `run`. By default the overrides that differ
    between runs, those of the workload first, else the scheduler, else each run by itself. Raises
    ValueError if an option is unknown, if two runs have the same options and the same seed, or if
    runs of different workloads would be averaged.
    """
    summary = results.summary
    config = results.config
    options = config.assign(**{name: summary[name] for name in results.overrides})
    for name in by:
        check_option(name, options, results.overrides)
    chosen = tuple(by) or tuple(
        name for name in results.overrides if options[name].astype(str).nunique() > 1
    )
    if not by:
        chosen = tuple(sorted(chosen, key=lambda name: not is_of_workload(name)))
    if not chosen:
        chosen = ("scheduler",) if "scheduler" in options else ("run",)
    values = list(options[list(chosen)].itertuples(index=False, name=None))
    labels = [" ".join(map(text_of, row)) for row in values]
    groups: dict[str, pd.DataFrame] = {}
    oracles: set[str] = set()
    ranks = {label: [rank_of(v) for v in row] for label, row in zip(labels, values, strict=True)}
    for label in sorted(ranks, key=ranks.__getitem__):
        rows = summary[[other == label for other in labels]].set_index("seed")
        twice = rows.index[rows.index.duplicated()]
        if len(twice):
            runs = ", ".join(rows.loc[[twice[0]], "run"])
            raise ValueError(
                f"runs {runs} are all {label!r} with seed {twice[0]}; "
                f"an option that tells them apart is needed in by={chosen}"
            )
        groups[label] = rows.sort_index()
        if results.oracle_runs.intersection(rows["run"]):
            oracles.add(label)
    texts = dict(zip(labels, ([text_of(v) for v in row] for row in values), strict=True))
    parts = {
        of_workload: {
            label: " ".join(
                text
                for name, text in zip(chosen, texts[label], strict=True)
                if is_of_workload(name) == of_workload
            )
            for label in groups
        }
        for of_workload in (True, False)
    }
    workloads = _workload_names(groups, results.configs, parts[True])
    drawn, asked = draws(results), asked_draws(results)
    return Comparison(
        chosen,
        groups,
        frozenset(oracles),
        workloads,
        parts[False],
        {
            label: {s: drawn[run] for s, run in rows["run"].items()}
            for label, rows in groups.items()
        },
        {
            label: {s: asked[run] for s, run in rows["run"].items()}
            for label, rows in groups.items()
        },
    )


def _workload_names(
    groups: Mapping[str, pd.DataFrame],
    configs: Mapping[str, Mapping[str, Any]],
    names: Mapping[str, str],
) -> dict[str, str]:
    """By label, the name in `names`, numbered where it does not tell two workloads apart."""
    identities: dict[str, str] = {}
    for label, rows in groups.items():
        found = {workload_identity(configs[run]): run for run in rows["run"]}
        if len(found) > 1:
            runs = " and ".join(list(found.values())[:2])
            raise ValueError(
                f"runs {runs} are both {label!r} but serve different workloads, which have no mean "
                "in common; an option of the workload is needed in --by"
            )
        identities[label] = next(iter(found))
    numbers: dict[str, list[str]] = {}
    for label, identity in identities.items():
        known = numbers.setdefault(names[label], [])
        if identity not in known:
            known.append(identity)
    return {
        label: names[label]
        if len(numbers[names[label]]) == 1
        else f"{names[label]} #{numbers[names[label]].index(identity) + 1}".strip()
        for label, identity in identities.items()
    }
