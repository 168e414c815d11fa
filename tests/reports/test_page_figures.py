"""Figures inside a page: which are drawn, and how they fit in."""

from __future__ import annotations

import re
from pathlib import Path

from matplotlib.figure import Figure

from testbed.metrics.loading import load
from testbed.reports.comparison import compare
from testbed.reports.page.figures import figures, inline_svg
from tests.reports.page_runs import write_sweep


def drawn() -> Figure:
    figure = Figure(figsize=(2, 1))
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], color="black")
    axes.grid(color="#dddddd")
    return figure


def test_a_figure_takes_the_colours_of_the_page() -> None:
    svg = inline_svg(drawn(), "one", 'What "it" shows')
    assert svg.startswith('<svg role="img" aria-label="What &quot;it&quot; shows" style="max-width')
    assert "currentColor" in svg and "var(--rule)" in svg
    assert "#000000" not in svg and "#dddddd" not in svg
    assert svg == inline_svg(drawn(), "one", 'What "it" shows')


def test_two_figures_share_no_id_and_refer_to_their_own() -> None:
    ids, references = {}, {}
    for name in ("one", "two"):
        svg = inline_svg(drawn(), name, "")
        ids[name] = set(re.findall(r'\bid="([^"]+)"', svg))
        references[name] = set(re.findall(r'(?:href="#|url\(#)([^")]+)', svg))
    assert ids["one"] and not ids["one"] & ids["two"]
    for name in ids:
        assert references[name] and references[name] <= ids[name]


def test_a_sweep_over_rates_gets_the_curves_over_rates(tmp_path: Path) -> None:
    for rate in (10.0, 20.0):
        write_sweep(tmp_path / str(rate), seeds=(0,), rate=rate, overrides={"arrivals.rate": rate})
    results = load(tmp_path)
    assert compare(results).by == ("arrivals.rate", "scheduler")
    texts = figures(results, compare(results))
    assert any("Waiting time and goodput against the rate of requests" in text for text in texts)
    by_rate = figures(results, compare(results, ["arrivals.rate", "scheduler", "seed"]))
    assert not any("Waiting time and goodput" in text for text in by_rate)
