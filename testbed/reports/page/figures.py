"""The figures of the page as SVG that takes the page's colours."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from io import StringIO
from typing import Any, NamedTuple

import matplotlib
import pandas as pd
from matplotlib.figure import Figure

from testbed.metrics.loading import Results
from testbed.reports import cache_sizes, cluster, fairness, load
from testbed.reports.comparison import Comparison
from testbed.reports.figures import policy_figure, policy_table
from testbed.reports.frontier import GAPS, frontier_figure, frontier_table
from testbed.reports.page.markup import MISSING, Markup, element, joined, table
from testbed.reports.style import STYLE

REM_AN_INCH = 6.8
"""What is printed at an inch is this wide on a screen, so that letters are of one size."""


class Panel(NamedTuple):
    """A figure that suits sweeps over `axis`, and over `others` if at all.

    numbers: makes the table that `draw` shows.
    """

    name: str
    axis: str
    others: frozenset[str]
    caption: str
    numbers: Callable[[Results], pd.DataFrame]
    draw: Callable[[pd.DataFrame], Figure]


SLO = load.Slo()
PANELS = (
    Panel(
        "cache-sizes",
        cache_sizes.SIZE,
        frozenset({cache_sizes.POLICY}),
        "Hit rate against the size of the cache, up to what clairvoyant eviction reaches",
        cache_sizes.cache_size_table,
        cache_sizes.cache_size_figure,
    ),
    Panel(
        "load",
        load.RATE,
        frozenset({load.POLICY}),
        "Waiting time and goodput against the rate of requests",
        partial(load.load_table, slo=SLO),
        partial(load.load_figure, slo=SLO),
    ),
    Panel(
        "cluster",
        cluster.REPLICAS,
        frozenset({cluster.POLICY}),
        "Hit rate, waiting time and balance as the fleet grows",
        cluster.cluster_table,
        cluster.cluster_figure,
    ),
)


def figures(results: Results, comparison: Comparison) -> list[Markup]:
    """Every figure that these runs have something to show in, each with its numbers."""
    found = [
        _figure(
            "policies",
            policy_figure(comparison),
            policy_table(comparison),
            "Prefix-cache hit rate, with what was possible as ticks, and output throughput",
        )
    ]
    by = set(comparison.by)
    recorded = all((folder / "steps.parquet").exists() for folder in results.folders.values())
    for panel in PANELS if recorded else ():
        if panel.axis in by and by <= panel.others | {panel.axis}:
            numbers = panel.numbers(results)
            found.append(_figure(panel.name, panel.draw(numbers), numbers, panel.caption))
    known = next(iter(comparison.groups.values())).columns
    gaps = [
        comparison.interval(label, gap).mean
        for label in comparison.groups
        for gap in GAPS
        if gap in known
    ]
    if len(comparison.groups) > 1 and any(gap > 0 for gap in gaps):
        found.append(
            _figure(
                "frontier",
                frontier_figure(comparison),
                frontier_table(comparison),
                "Reuse and throughput against the largest gap in service between clients that both "
                "wait; up and to the left is better",
            )
        )
        if by == {"scheduler"} and recorded and _is_stream(results):
            lines = fairness.fairness_table(results)
            caption = "Service of each client over time, and the gap between clients"
            found.append(_figure("fairness", fairness.fairness_figure(lines), None, caption))
    return found


def _is_stream(results: Results) -> bool:
    """Whether requests come over time, to schedulers whose options, and so promises, are known."""
    target = "scheduler._target_"
    known = target in results.config and not results.config[target].isna().any()
    return known and bool(results.requests["arrival_s"].max() > 0)


def inline_svg(figure: Figure, name: str, label: str) -> Markup:
    """The figure as an SVG element with ids of its own; black and the grid follow the page."""
    text = StringIO()
    settings: dict[Any, Any] = {**STYLE, "svg.hashsalt": name, "svg.fonttype": "path"}
    with matplotlib.rc_context(settings):
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    # Several figures share one page, and so one space of ids.
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'href="#', f'href="#{name}-', svg)
    svg = svg.replace("url(#", f"url(#{name}-")
    svg = svg.replace("#000000", "currentColor").replace(str(STYLE["grid.color"]), "var(--rule)")
    width = f"max-width: {REM_AN_INCH * figure.get_size_inches()[0]:.1f}rem"
    opening = element("svg", role="img", aria_label=label, style=width).removesuffix("></svg>")
    return Markup(svg.replace("<svg", opening, 1))


def _figure(name: str, figure: Figure, numbers: pd.DataFrame | None, caption: str) -> Markup:
    parts = [inline_svg(figure, name, caption), element("figcaption", f"{caption}.")]
    if numbers is not None:
        heads = [str(column).replace("_", " ") for column in numbers]
        rows = [list(map(_cell, row)) for row in numbers.itertuples(index=False, name=None)]
        listing = table(f"Numbers of the figure: {caption}", heads, rows)
        parts.append(element("details", element("summary", "Its numbers"), listing))
    return element("figure", joined(parts, "\n"))


def _cell(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    return MISSING if value != value else f"{value:,.4g}"
