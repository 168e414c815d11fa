"""What a change did, metric by metric, with a verdict for each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from textwrap import wrap
from typing import NamedTuple

from testbed.metrics.paired import Change, judge
from testbed.metrics.pairing import SAME_PROMPTS, Pairs
from testbed.reports.table import MAX_WIDTH, METRICS, Metric, decimals_of

JUDGED = tuple(metric for metric in METRICS if metric.best is not None)
"""The metrics of which more, or less, is better."""
HEADINGS = ("", "before", "after", "difference", "", "verdict")


class Judgement(NamedTuple):
    """What became of one metric in one row."""

    label: str
    metric: Metric
    change: Change


def judge_pairs(pairs: Pairs, metrics: Sequence[str] = (), margin: float = 0.0) -> list[Judgement]:
    """Every judged metric that was measured on either side, by row, in the order of METRICS.

    metrics: summary columns; by default all of JUDGED. margin: the fraction of the mean before that
    a difference must exceed. ValueError for a metric that is not judged.
    """
    known = [metric.column for metric in JUDGED]
    for name in metrics:
        if name not in known:
            raise ValueError(f"metric={name!r}: one of {', '.join(known)} is needed")
    judgements = []
    for label, (before, after) in pairs.rows.items():
        for metric in JUDGED:
            column = metric.column
            if metrics and column not in metrics:
                continue
            change = judge(
                *(side.get(column, [math.nan] * len(side)) for side in (before, after)),
                better="higher" if metric.best is max else "lower",
                margin=margin,
            )
            if change.verdict != "not measured" or metrics:
                judgements.append(Judgement(label, metric, change))
    return judgements


def changes_table(pairs: Pairs, judgements: Sequence[Judgement], margin: float = 0.0) -> str:
    """A block a row of `pairs`; what is equal in every pair in a note; the verdicts last."""
    blocks = []
    for label in pairs.rows:
        here = [j for j in judgements if j.label == label]
        shown = [j for j in here if j.change.verdict != "equal"]
        count = len(pairs.rows[label][0])
        head = f"{label or 'all runs'} ({count} {'pair' if count == 1 else 'pairs'})"
        lines = _aligned([(head, *HEADINGS[1:]), *map(_cells, shown)]) if shown else [head]
        equal = ", ".join(j.metric.name for j in here if j.change.verdict == "equal")
        if equal:
            lines += wrap(f"equal in every pair: {equal}", MAX_WIDTH, subsequent_indent="  ")
        blocks.append("\n".join(lines))
    return "\n\n".join([*blocks, "\n".join(_notes(pairs, judgements, margin))]) + "\n"


def _cells(judgement: Judgement) -> tuple[str, ...]:
    metric, change = judgement.metric, judgement.change
    before, after = metric.scale * change.before, metric.scale * change.after
    mean, half_width = (metric.scale * value for value in change.difference)
    decimals = decimals_of(metric, [v for v in (before, after, mean) if math.isfinite(v)])
    ends = ["-" if math.isnan(value) else f"{value:,.{decimals}f}" for value in (before, after)]
    if not change.pairs:
        return (metric.name, *ends, "-", "", change.verdict)
    # A difference is smaller than what it is between.
    finer = decimals + 1 if decimals else 0
    spread = "" if math.isnan(half_width) else f" ±{half_width:,.{finer}f}"
    known = before != 0 and all(map(math.isfinite, (before, mean)))
    relative = f"{mean / abs(before):+.1%}" if known else ""
    return (
        metric.name,
        *ends,
        f"{mean:+,.{finer}f}{spread}",
        relative,
        change.verdict,
    )


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Text columns to the left, numbers to the right, a rule below the first row."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    texts = (0, len(widths) - 1)
    lines = [
        "  ".join(
            cell.ljust(width) if place in texts else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    return [lines[0], "  ".join("-" * width for width in widths), *lines[1:]]


def _notes(pairs: Pairs, judgements: Sequence[Judgement], margin: float) -> list[str]:
    notes = [f"changed: {name}: {a} -> {b}" for name, (a, b) in pairs.changed.items()]
    for runs, what in ((pairs.missing, "missing after"), (pairs.new, "new, without one before")):
        if runs:
            rest = f" and {len(runs) - 3} more" if len(runs) > 3 else ""
            notes.append(f"{what}: {', '.join(runs[:3])}{rest}")
    notes += _notes_on_seeds(pairs) + _notes_on_gaps(pairs, judgements)
    judged = [j.change for j in judgements if j.change.verdict != "equal"]
    counts = [change.pairs for change in judged if change.pairs]
    if max(counts, default=0) > 1:
        notes.append("difference: mean over the pairs ± its 95 % confidence interval (paired t)")
    if min(counts, default=0) == 1:
        how = f"judged by the margin of {margin:.1%} alone" if margin else "left undecided"
        notes.append(f"a single pair has no interval: {how}; more seeds would tell noise apart")
    noisy = sum(count > 1 for count in counts)
    if noisy:
        most = "at most " if margin else ""
        notes.append(
            f"each verdict has 95 % confidence by itself: were all {noisy} differences noise, "
            f"{most}{0.05 * noisy:.2g} of them would be taken for changes, half of these for worse"
        )
    verdicts = [j.change.verdict for j in judgements]
    tally = {verdict: verdicts.count(verdict) for verdict in dict.fromkeys(verdicts)}
    notes.append("verdicts: " + ", ".join(f"{count} {name}" for name, count in tally.items()))
    return notes


def _notes_on_seeds(pairs: Pairs) -> list[str]:
    notes = []
    for label, seeds in pairs.repeats.items():
        shown = ", ".join(map(str, seeds[:6])) + (", ..." if len(seeds) > 6 else "")
        several = len(seeds) > 1
        notes.append(
            f"{label or 'all runs'}: seed{'s' * several} {shown} change{'s' * (not several)} "
            "nothing, and "
            f"{'are' if several else 'is'} no sample of {'their' if several else 'its'} own"
        )
    for label in pairs.one_workload:
        notes.append(f"{label or 'all runs'}: {SAME_PROMPTS}")
    return notes


def _notes_on_gaps(pairs: Pairs, judgements: Sequence[Judgement]) -> list[str]:
    """The metrics that were not measured in every pair."""
    notes = []
    for label, metric, change in judgements:
        number = len(pairs.rows[label][0])
        if change.measured != (number, number):
            row = f"{label}: " if len(pairs.rows) > 1 else ""
            before, after = change.measured
            notes.append(
                f"{row}{metric.name}: measured in {before} before, {after} after; "
                f"{change.pairs} {'pair' if change.pairs == 1 else 'pairs'} of {number}"
            )
    return notes
