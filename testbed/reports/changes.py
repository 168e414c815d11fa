"""What a change did, metric by metric, with a verdict for each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from textwrap import wrap
from typing import NamedTuple

from testbed.metrics.paired import Change, judge
from testbed.metrics.pairing import Pairs
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
    """Every judged metric that was measured, by row, in the order of METRICS.

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
            if (metrics and column not in metrics) or column not in before or column not in after:
                continue
            change = judge(
                before[column],
                after[column],
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
        count = max((j.change.pairs for j in here), default=0)
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
    decimals = decimals_of(metric, [before, after, mean])
    if not change.pairs:
        return (metric.name, "-", "-", "-", "", change.verdict)
    # A difference is smaller than what it is between.
    finer = decimals + 1 if decimals else 0
    spread = "" if math.isnan(half_width) else f" ±{half_width:,.{finer}f}"
    relative = f"{mean / abs(before):+.1%}" if before else ""
    return (
        metric.name,
        f"{before:,.{decimals}f}",
        f"{after:,.{decimals}f}",
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
    if pairs.alone:
        rest = f" and {len(pairs.alone) - 3} more" if len(pairs.alone) > 3 else ""
        notes.append(f"without a partner: {', '.join(pairs.alone[:3])}{rest}")
    counts = [j.change.pairs for j in judgements]
    if max(counts, default=0) > 1:
        notes.append("difference: mean over the pairs ± its 95 % confidence interval (paired t)")
    if min(counts, default=0) <= 1:
        how = f"judged by the margin of {margin:.1%} alone" if margin else "left undecided"
        notes.append(f"a single pair has no interval: {how}; more seeds would tell noise apart")
    verdicts = [j.change.verdict for j in judgements]
    noisy = [verdict for verdict in verdicts if verdict not in ("equal", "not measured")]
    if min(counts, default=0) > 1 and noisy:
        notes.append(
            f"each verdict has 95 % confidence by itself: were all {len(noisy)} differences noise, "
            f"{0.05 * len(noisy):.2g} of them would be taken for changes"
        )
    tally = {verdict: verdicts.count(verdict) for verdict in dict.fromkeys(verdicts)}
    notes.append("verdicts: " + ", ".join(f"{count} {name}" for name, count in tally.items()))
    return notes
