"""The page as text: every section, whole HTML, the same bytes for the same results."""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections import Counter
from collections.abc import Iterable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from testbed.core.request import Request
from testbed.metrics.loading import Results, load
from testbed.reports.page.document import report_page
from testbed.reports.page.prefixes import NoPrompts
from testbed.workloads import RagWorkload
from tests.reports.page_runs import write_sweep

SECTIONS = [
    "Question",
    "Warnings",
    "Results",
    "Figures",
    "Timeline",
    "Prefixes",
    "Configuration",
    "Runs",
    "Metrics",
]
VOID = {"meta", "link", "br", "path", "use", "rect"}


def data(text: str, name: str) -> list[dict[str, Any]]:
    """What is packed into the page under `name`, in order."""
    packed = re.findall(rf'id="{name}-\d+">([^<]*)</script>', text)
    return [json.loads(gzip.decompress(base64.b64decode(part))) for part in packed]


class Page(HTMLParser):
    """Opening tags must be closed in order; ids and headings are collected."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.headings: list[str] = []
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value is not None:
                self.ids.append(value)
            if name in ("href", "src") and value is not None:
                self.links.append(value)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "h2":
            self.headings.append(data)


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sweep(tmp_path_factory.mktemp("sweep"))


def asked(run: str) -> Iterable[Request]:
    seed = int(run.rpartition("-")[2])
    return RagWorkload(num_requests=60, documents=20, system_tokens=200, seed=seed)


def test_it_has_every_section_and_is_well_formed(sweep: Path) -> None:
    results = load(sweep)
    text = report_page(results, sweep, prompts=asked)
    page = Page(text)
    assert page.open == [] and page.headings == SECTIONS
    assert [name for name, count in Counter(page.ids).items() if count > 1] == []
    assert {f"#{name.lower()}" for name in SECTIONS} <= set(page.links)
    # Nothing is fetched: links stay on the page.
    assert [link for link in page.links if not link.startswith(("#", "data:"))] == []
    assert "fcfs and lpm compared" in text and "1 setting" not in text
    for run in results.folders:
        assert f">{run}</th>" in text
    rate = results.summary.set_index("run")["hit_rate"]
    for scheduler in ("fcfs", "lpm"):
        mean = (rate[f"{scheduler}-0"] + rate[f"{scheduler}-1"]) / 2
        assert f"{mean:.3f}" in text


def test_equal_results_give_an_equal_page(sweep: Path) -> None:
    first = report_page(load(sweep), sweep, prompts=asked)
    assert first == report_page(load(sweep), sweep, prompts=asked)


def test_labels_are_escaped(tmp_path: Path) -> None:
    folder = write_sweep(tmp_path, ("lpm",), (0,), overrides={"note": "<script>alert(1)</script>"})
    text = report_page(load(folder), folder, by=["note"])
    assert "<script>alert" not in text and "&lt;script&gt;alert(1)&lt;/script&gt;" in text


def test_what_cannot_be_shown_is_said(tmp_path: Path) -> None:
    folder = write_sweep(tmp_path, ("lpm",), (0,), write_steps=False)
    text = report_page(load(folder), folder)
    assert "did not write down their steps" in text
    assert "could not be rebuilt" in text
    assert "timeline-view" not in re.sub(r"<script>.*</script>", "", text, flags=re.DOTALL)


def test_the_runs_that_are_shown_can_be_chosen(sweep: Path) -> None:
    text = report_page(load(sweep), sweep, shown=["lpm-1"], prompts=asked)
    assert text.count('id="timeline-0"') == 1 and 'id="timeline-1"' not in text
    assert "lpm-1, seed 1" in text
    with pytest.raises(ValueError, match="run='nothing': one of the runs is needed: fcfs-0"):
        report_page(load(sweep), sweep, shown=["nothing"])


def test_runs_of_one_workload_share_a_tree(sweep: Path) -> None:
    rebuilt: list[str] = []

    def prompts(run: str) -> Iterable[Request]:
        rebuilt.append(run)
        return asked(run)

    text = report_page(load(sweep), sweep, prompts=prompts)
    assert rebuilt == ["fcfs-0"]
    assert text.count('id="tree-') == 1 and text.count('id="prefixes-1"') == 1


def test_another_seed_of_the_workload_gets_a_tree_of_its_own(tmp_path: Path) -> None:
    for seed in (0, 7):
        write_sweep(tmp_path / str(seed), ("fcfs",), (seed,), overrides={"workload.seed": seed})
    # The run's own seed is the same: only the workload's differs.
    manifest = tmp_path / "7" / "fcfs-7" / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "seed": 0}))
    results = load(tmp_path)
    text = report_page(results, tmp_path, prompts=lambda run: asked(run))
    trees, found = data(text, "tree"), data(text, "prefixes")
    assert len(trees) == 2 and trees[0] != trees[1]
    assert [view["tree"] for view in found] == ["tree-0", "tree-1"]


def test_a_run_whose_prompts_are_not_known_is_named(sweep: Path) -> None:
    def some(run: str) -> Iterable[Request]:
        if run == "lpm-0":
            raise NoPrompts("trace.jsonl has changed since the run")
        return asked(run)

    text = report_page(load(sweep), sweep, shown=["fcfs-0", "lpm-1"], prompts=some)
    assert len(data(text, "tree")) == 2 and "could not be rebuilt" not in text
    text = report_page(load(sweep), sweep, shown=["lpm-0"], prompts=some)
    note = "lpm, seed 0 was asked could not be rebuilt: trace.jsonl has changed since the run."
    assert note in text and data(text, "prefixes") == []


def test_settings_beyond_the_limit_are_named(sweep: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("testbed.reports.page.document.MAX_SHOWN", 1)
    text = report_page(load(sweep), sweep, prompts=asked)
    assert "Left out to keep the page small: lpm." in text


def test_one_run_by_itself(sweep: Path) -> None:
    results = load(sweep / "lpm-0")
    assert isinstance(results, Results)
    text = report_page(results, sweep / "lpm-0", prompts=lambda run: asked("lpm-0"))
    assert "One setting: lpm" in text and "How does this setting serve its workload" in text
