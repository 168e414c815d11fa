"""Which runs belong together: one configuration with all its seeds is one row of a report."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from testbed.metrics.intervals import Interval, mean_interval
from testbed.metrics.loading import Results

ORACLE_NOTE = "† oracle: it is told what no real system knows"


@dataclass(frozen=True)
class Comparison:
    """by: the options that make a label. groups: summaries by label, each indexed by seed.

    oracles: the labels of runs with a policy that was told what no real system knows.
    """

    by: tuple[str, ...]
    groups: dict[str, pd.DataFrame]
    oracles: frozenset[str] = frozenset()

    def mark(self, label: str) -> str:
        """A dagger for an oracle's label, else nothing."""
        return "†" if label in self.oracles else ""

    def interval(self, label: str, metric: str) -> Interval:
        """The metric's mean over the seeds of one label."""
        return mean_interval(self.groups[label][metric].to_numpy())

    def difference(self, label: str, baseline: str, metric: str) -> Interval:
        """Mean of label less baseline, over the seeds that both have, paired by seed."""
        paired = self.groups[label][metric] - self.groups[baseline][metric]
        common = self.groups[label].index.intersection(self.groups[baseline].index)
        return mean_interval(paired.loc[common].to_numpy())


def compare(results: Results, by: Sequence[str] = ()) -> Comparison:
    """Group runs by the options in `by`, in order of their values.

    by: names of testbed.load(...).config columns, or `run`. By default the overrides that differ
    between runs, else the scheduler, else each run by itself. Raises ValueError if an option is
    unknown, or if two runs have the same options and the same seed.
    """
    summary = results.summary
    config = results.config
    options = config.assign(**{name: summary[name] for name in results.overrides})
    unknown = [name for name in by if name not in options]
    if unknown:
        raise ValueError(
            f"by={unknown[0]!r}: one of the options is needed: {', '.join(map(str, options))}"
        )
    chosen = tuple(by) or tuple(
        name for name in results.overrides if options[name].astype(str).nunique() > 1
    )
    if not chosen:
        chosen = ("scheduler",) if "scheduler" in options else ("run",)
    values = list(options[list(chosen)].itertuples(index=False, name=None))
    labels = [" ".join(map(_text, row)) for row in values]
    groups: dict[str, pd.DataFrame] = {}
    oracles: set[str] = set()
    ranks = {label: [_rank(v) for v in row] for label, row in zip(labels, values, strict=True)}
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
    return Comparison(chosen, groups, frozenset(oracles))


def _text(value: Any) -> str:
    if _is_missing(value):
        return "-"
    # Where a run lacks the option, pandas has turned the others' integers into floats.
    return str(int(value) if isinstance(value, float) and value.is_integer() else value)


def _rank(value: Any) -> tuple[int, float, str]:
    """Numbers by size, then texts, then options that a run does not have."""
    if _is_missing(value):
        return (2, 0.0, "")
    if isinstance(value, bool) or not isinstance(value, int | float):
        return (1, 0.0, str(value))
    return (0, float(value), "")


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))
