"""Where each row of a comparison loses its hit rate, as lines on a terminal."""

from __future__ import annotations

import math

from testbed.metrics.gaps import Lever
from testbed.metrics.intervals import Interval, mean_interval
from testbed.metrics.loading import Results
from testbed.metrics.run_gaps import DEPTH_FIRST, run_gaps
from testbed.reports.comparison import Comparison
from testbed.reports.table import row_name

LEVERS: tuple[Lever, ...] = ("template", "capacity", "scheduling")
_NOTES = (
    "template: the best order's bound less this order's; - where prompts have no known segments",
    f"capacity: this order's bound less the hit rate of {DEPTH_FIRST} with the same cache",
    f"scheduling: the hit rate of {DEPTH_FIRST} less this row's",
)


def gap_lines(results: Results, comparison: Comparison) -> str:
    """A line for each row whose runs all have a partner under `dfs`; empty if there is none.

    Means over seeds with their 95 % half widths.
    """
    gaps = run_gaps(results)
    rows = {
        row_name(comparison, label): [
            _cell(
                mean_interval(
                    [
                        gaps[run].by_lever[lever]
                        for run in group.loc[comparison.samples(label), "run"]
                    ]
                )
            )
            for lever in LEVERS
        ]
        for label, group in comparison.groups.items()
        if all(run in gaps for run in group["run"])
    }
    if not rows:
        return ""
    lines: dict[str, list[str]] = {"gaps of the hit rate": [*LEVERS], **rows}
    left = max(map(len, lines))
    widths = [max(len(cells[i]) for cells in lines.values()) for i in range(len(LEVERS))]
    table = [
        "  ".join([name.ljust(left), *(c.rjust(w) for c, w in zip(cells, widths, strict=True))])
        for name, cells in lines.items()
    ]
    rule = "  ".join("-" * width for width in (left, *widths))
    return "\n".join([table[0], rule, *table[1:], "", *_NOTES]) + "\n"


def _cell(gap: Interval) -> str:
    if math.isnan(gap.mean):
        return "-"
    spread = "" if math.isnan(gap.half_width) else f" ±{gap.half_width:.3f}"
    return f"{gap.mean:.3f}{spread}"
