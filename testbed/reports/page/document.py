"""The page as a whole: what is on it, in which order."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import pandas as pd

from testbed.core.request import Request
from testbed.metrics.loading import Results
from testbed.metrics.pairing import WORKLOAD_OPTIONS
from testbed.reports.comparison import Comparison, compare
from testbed.reports.page.cautions import cautions
from testbed.reports.page.figures import figures
from testbed.reports.page.markup import Markup, bullets, element, joined, packed
from testbed.reports.page.prefixes import NoPrompts, PromptTree, found_prefixes, prompt_tree
from testbed.reports.page.tables import configuration_table, glossary, results_table, runs_table
from testbed.reports.page.timeline import timeline
from testbed.reports.page.words import facts, question, title

Prompts = Callable[[str], Iterable[Request]]
"""By run, what it was asked; raises NoPrompts where that cannot be known."""
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


def _unknown(run: str) -> Iterable[Request]:
    raise NoPrompts("nothing was given to rebuild it from")


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
    prompts: Prompts = _unknown,
    progress: Callable[[str], None] = lambda run: None,
) -> str:
    """The HTML of the report; equal results give an equal page.

    folder: where the results lie. by: as in `compare`. shown: the runs whose steps and prompts the
    page holds; by default the first seed of each setting, MAX_SHOWN at most. prompts: rebuilds what
    a run was asked. progress: hears the name of each shown run before each view of it is made.
    ValueError for an unknown run.
    """
    unknown = [run for run in shown if run not in results.folders]
    if unknown:
        known = ", ".join(list(results.folders)[:8])
        raise ValueError(f"run={unknown[0]!r}: one of the runs is needed: {known}")
    comparison = compare(results, by)
    firsts = {str(rows["run"].iloc[0]): label for label, rows in comparison.groups.items()}
    runs = list(shown) or list(firsts)[:MAX_SHOWN]
    timelines = _timelines(results, runs, firsts, progress)
    trees, prefixes, untold = _prefixes(results, runs, firsts, prompts, progress)
    left_out = [] if shown else list(firsts.values())[MAX_SHOWN:]
    warnings = cautions(results, comparison, folder)
    sections = {
        "Question": _question(results, comparison),
        "Warnings": bullets(warnings) if warnings else element("p", "Nothing stands out."),
        "Results": results_table(comparison),
        "Figures": joined(figures(results, comparison), "\n"),
        "Timeline": _view(
            "timeline", timelines, left_out, TIMELINE_TEXT, [] if timelines else [NO_STEPS]
        ),
        "Prefixes": _view("prefixes", prefixes, left_out, PREFIX_TEXT, untold),
        "Configuration": configuration_table(results),
        "Runs": runs_table(results, comparison),
        "Metrics": glossary(comparison),
    }
    return _page(title(comparison), sections, trees)


def _timelines(
    results: Results, runs: Sequence[str], labels: dict[str, str], progress: Callable[[str], None]
) -> list[View]:
    views: list[View] = []
    for run in runs:
        progress(run)
        one = Results({run: results.folders[run]})
        if len(one.steps):
            data = timeline(one.requests, one.steps, results.manifests[run]["counters"])
            name = f"timeline-{len(views)}"
            views.append(View(_label(results, run, labels), packed(data, name)))
    return views


def _prefixes(
    results: Results,
    runs: Sequence[str],
    labels: dict[str, str],
    prompts: Prompts,
    progress: Callable[[str], None],
) -> tuple[list[Markup], list[View], list[str]]:
    """The trees that several runs may share, what each found in its own, and why some have none."""
    trees: list[Markup] = []
    views: list[View] = []
    missing: dict[str, list[str]] = {}
    known: dict[str, tuple[str, PromptTree]] = {}
    for run in runs:
        progress(run)
        one = Results({run: results.folders[run]})
        label = _label(results, run, labels)
        key = _tree_key(results, run, measured=len(one.added) > 0)
        try:
            if key not in known:
                tree = _tree(one.requests, prompts(run), results.manifests[run]["counters"])
                known[key] = (f"tree-{len(trees)}", tree)
                trees.append(packed(tree.nodes, f"tree-{len(trees)}"))
        except NoPrompts as reason:
            missing.setdefault(str(reason), []).append(label)
            continue
        name, tree = known[key]
        found: dict[str, Any] = {"tree": name, **found_prefixes(tree, one.requests)}
        views.append(View(label, packed(found, f"prefixes-{len(views)}")))
    untold = [
        f"What {'; '.join(them)} {'was' if len(them) == 1 else 'were'} asked could not be rebuilt: "
        f"{reason}."
        for reason, them in missing.items()
    ]
    return trees, views, untold


def _label(results: Results, run: str, labels: dict[str, str]) -> str:
    return f"{labels.get(run, run)}, seed {results.manifests[run]['seed']}"


def _tree_key(results: Results, run: str, measured: bool) -> str:
    """The same for runs that were asked the same, seeds and data included, in pages of one size.

    measured: the run wrote down its own prompts, which may depend on what it answered.
    """
    config, manifest = results.configs[run], results.manifests[run]
    asked = [config.get(name) for name in (*WORKLOAD_OPTIONS, "inputs")]
    pages = manifest["counters"].get("page_size", 0)
    own = run if measured else ""
    return json.dumps([asked, manifest["seed"], pages, own], sort_keys=True, default=str)


def _tree(requests: pd.DataFrame, asked: Iterable[Request], counters: dict[str, Any]) -> PromptTree:
    admitted = requests[requests["admitted_step"] >= 0]
    lengths = dict(
        zip(admitted["request"].tolist(), admitted["prompt_tokens"].tolist(), strict=True)
    )
    if not lengths:
        raise NoPrompts("no request was admitted")
    return prompt_tree(asked, lengths, counters.get("page_size", 0))


def _question(results: Results, comparison: Comparison) -> Markup:
    rows = (
        joined((element("dt", name), element("dd", value)))
        for name, value in facts(results, comparison)
    )
    asked = element("p", question(results, comparison), class_="question")
    return joined((asked, element("dl", joined(rows), class_="facts")))


def _view(
    name: str, views: Sequence[View], left_out: Sequence[str], text: str, missing: Sequence[str]
) -> Markup:
    """A view's place on the page, which its script fills; below it, what is missing."""
    notes = [element("p", note, class_="note") for note in missing]
    if not views:
        return joined(notes, "\n")
    options = [element("option", view.label, value=place) for place, view in enumerate(views)]
    parts = [
        element("p", text, class_="note"),
        element("div", element("noscript", "This view needs JavaScript."), id=f"{name}-view"),
        element("template", *options, id=f"{name}-runs"),
        *(view.data for view in views),
        *notes,
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
