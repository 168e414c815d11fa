"""The page as a whole: what is on it, in which order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import pandas as pd

from testbed.core.request import Request
from testbed.metrics.loading import Results
from testbed.metrics.pairing import workload_identity
from testbed.reports.comparison import Comparison, compare
from testbed.reports.page.cautions import cautions
from testbed.reports.page.figures import figures
from testbed.reports.page.markup import Markup, bullets, element, joined, packed
from testbed.reports.page.prefixes import PromptTree, found_prefixes, prompt_tree
from testbed.reports.page.tables import configuration_table, glossary, results_table, runs_table
from testbed.reports.page.timeline import timeline
from testbed.reports.page.words import facts, question, title

Prompts = Callable[[str], Iterable[Request] | None]
"""By run, what it was asked; None where that cannot be known."""
MAX_SHOWN = 6
"""The runs whose steps the page holds, unless they are named: each takes up to a megabyte."""
SCRIPTS = ("canvas.js", "timeline.js", "prefixes.js")
TIMELINE_TEXT = (
    "What each step did: prompt tokens found in the cache and computed, tokens generated, the "
    "queue, the pool and what was evicted. Zoomed out, each pixel shows the mean over its time. "
    "Drag to move; scroll with Ctrl, or press plus and minus, to zoom; arrow keys step through."
)
PREFIX_TEXT = (
    "The prompts as a tree, beginnings at the left: a box is as wide as its stretch of tokens and "
    "as high as the number of requests that share it, so that its area is the prompt tokens asked "
    "for. Hatched boxes stand for rests that few requests share. Click a box, or press Enter, to "
    "look into it; Escape shows all again; arrow keys move from box to box."
)
NO_STEPS = "These runs did not write down their steps (record.steps=false)."
NO_PROMPTS = (
    "What these runs were asked could not be rebuilt: their workload is no part of the testbed, or "
    "its data is not there."
)


@dataclass(frozen=True)
class View:
    """One interactive view: what its run is called, and its data, packed."""

    label: str
    data: Markup


def report_page(
    results: Results,
    folder: Path,
    *,
    by: Sequence[str] = (),
    shown: Sequence[str] = (),
    prompts: Prompts = lambda run: None,
    progress: Callable[[str], None] = lambda run: None,
) -> str:
    """The HTML of the report; equal results give an equal page.

    folder: where the results lie. by: as in `compare`. shown: the runs whose steps and prompts the
    page holds; by default the first seed of each setting, MAX_SHOWN at most. prompts: rebuilds what
    a run was asked. progress: hears the name of each shown run before work on it begins.
    ValueError for an unknown run.
    """
    unknown = [run for run in shown if run not in results.folders]
    if unknown:
        known = ", ".join(list(results.folders)[:8])
        raise ValueError(f"run={unknown[0]!r}: one of the runs is needed: {known}")
    comparison = compare(results, by)
    firsts = {str(rows["run"].iloc[0]): label for label, rows in comparison.groups.items()}
    runs = list(shown) or list(firsts)[:MAX_SHOWN]
    timelines, trees, prefixes = _views(results, runs, firsts, prompts, progress)
    left_out = [] if shown else list(firsts.values())[MAX_SHOWN:]
    warnings = cautions(results, comparison, folder)
    sections = {
        "Question": _question(results, comparison),
        "Warnings": bullets(warnings) if warnings else element("p", "Nothing stands out."),
        "Results": results_table(comparison),
        "Figures": joined(figures(results, comparison), "\n"),
        "Timeline": _view("timeline", timelines, left_out, TIMELINE_TEXT, NO_STEPS),
        "Prefixes": _view("prefixes", prefixes, left_out, PREFIX_TEXT, NO_PROMPTS),
        "Configuration": configuration_table(results),
        "Runs": runs_table(results, comparison),
        "Metrics": glossary(comparison),
    }
    return _page(title(comparison), sections, trees)


def _views(
    results: Results,
    runs: Sequence[str],
    labels: dict[str, str],
    prompts: Prompts,
    progress: Callable[[str], None],
) -> tuple[list[View], list[Markup], list[View]]:
    """Timelines, the trees that several runs may share, and what each run found in its own."""
    timelines: list[View] = []
    trees: list[Markup] = []
    prefixes: list[View] = []
    known: dict[tuple[str, int, int], tuple[str, PromptTree] | None] = {}
    for run in runs:
        progress(run)
        one = Results({run: results.folders[run]})
        manifest = results.manifests[run]
        counters = manifest["counters"]
        label = f"{labels.get(run, run)}, seed {manifest['seed']}"
        if len(one.steps):
            data = timeline(one.requests, one.steps, counters)
            timelines.append(View(label, packed(data, f"timeline-{len(timelines)}")))
        config = results.configs[run]
        key = (workload_identity(config), manifest["seed"], counters.get("page_size", 0))
        if key not in known:
            tree = _tree(one.requests, prompts(run), key[-1])
            known[key] = None if tree is None else (f"tree-{len(trees)}", tree)
            if tree is not None:
                trees.append(packed(tree.nodes, f"tree-{len(trees)}"))
        if (named := known[key]) is not None:
            found: dict[str, Any] = {"tree": named[0], **found_prefixes(named[1], one.requests)}
            prefixes.append(View(label, packed(found, f"prefixes-{len(prefixes)}")))
    return timelines, trees, prefixes


def _tree(
    requests: pd.DataFrame, asked: Iterable[Request] | None, page_size: int
) -> PromptTree | None:
    if asked is None or not len(requests):
        return None
    admitted = requests[requests["admitted_step"] >= 0]
    lengths = dict(
        zip(admitted["request"].tolist(), admitted["prompt_tokens"].tolist(), strict=True)
    )
    return prompt_tree(asked, lengths, page_size)


def _question(results: Results, comparison: Comparison) -> Markup:
    rows = (
        joined((element("dt", name), element("dd", value)))
        for name, value in facts(results, comparison)
    )
    asked = element("p", question(results, comparison), class_="question")
    return joined((asked, element("dl", joined(rows), class_="facts")))


def _view(
    name: str, views: Sequence[View], left_out: Sequence[str], text: str, missing: str
) -> Markup:
    """A view's place on the page: its script fills it; without one, what is missing."""
    if not views:
        return element("p", missing, class_="note")
    options = [element("option", view.label, value=place) for place, view in enumerate(views)]
    parts = [
        element("p", text, class_="note"),
        element("div", element("noscript", "This view needs JavaScript."), id=f"{name}-view"),
        element("template", *options, id=f"{name}-runs"),
        *(view.data for view in views),
    ]
    if left_out:
        parts.append(
            element("p", f"Left out to keep the page small: {', '.join(left_out)}.", class_="note")
        )
    return joined(parts, "\n")


def _page(headline: str, sections: dict[str, Markup], data: Sequence[Markup]) -> str:
    here = files(__package__)
    style = (here / "page.css").read_text(encoding="utf-8")
    scripts = [(here / name).read_text(encoding="utf-8") for name in SCRIPTS]
    links = [element("a", name, href=f"#{name.lower()}") for name in sections]
    blocks = [
        element(
            "section",
            element("h2", name, id=f"{name.lower()}-title"),
            "\n",
            content,
            id=name.lower(),
            aria_labelledby=f"{name.lower()}-title",
        )
        for name, content in sections.items()
    ]
    head = joined(
        (
            Markup('<meta charset="utf-8">'),
            Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
            Markup('<meta name="color-scheme" content="light dark">'),
            # Nothing may be fetched from anywhere, whatever a label contains.
            Markup(
                '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
                "style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:\">"
            ),
            Markup('<link rel="icon" href="data:,">'),
            element("title", headline),
            element("style", Markup(style)),
        ),
        "\n",
    )
    body = joined(
        (
            element(
                "header",
                element("p", "radix-testbed report", class_="kind"),
                element("h1", headline),
            ),
            element("nav", *links, aria_label="Sections"),
            element("main", *(joined((block, "\n")) for block in blocks)),
            *data,
            element("script", Markup("\n".join(scripts))),
        ),
        "\n",
    )
    page = element("html", element("head", head), "\n", element("body", body), lang="en")
    return f"<!doctype html>\n{page}\n"
