"""The page in Chromium: it opens, draws, answers to mouse and keys, and asks for nothing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from testbed.commands.report import asked
from testbed.core.records import REQUEST_COLUMNS, STEP_COLUMNS, RunRecord, columns_of
from testbed.metrics.loading import load
from testbed.metrics.results import write_run
from testbed.metrics.summary import SUMMARY_COLUMNS
from testbed.reports.page.document import report_page
from tests.metrics.conftest import build_record
from tests.reports.page_runs import write_sweep

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
playwright = pytest.importorskip(
    "playwright.sync_api",
    reason="playwright is not installed: pip install 'radix-testbed[browser]'",
)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium: apt-get install chromium")

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


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    # Chromium refuses to sandbox itself for root, as whom containers run.
    options = ["--no-sandbox"] if os.geteuid() == 0 else []
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=options)
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sweep(tmp_path_factory.mktemp("sweep"), replicas=2)


@pytest.fixture(scope="module")
def report(sweep: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    results = load(sweep)
    file = tmp_path_factory.mktemp("page") / "report.html"
    file.write_text(report_page(results, sweep, prompts=partial(asked, results)))
    return file


class Opened:
    """A page, with what it complained of and what it asked the network for."""

    def __init__(self, browser: Any, file: Path, **options: Any) -> None:
        self.context = browser.new_context(viewport={"width": 1200, "height": 900}, **options)
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(file.as_uri())

    def readout(self, view: str, start: str) -> str:
        """The text below a view, once it begins like this."""
        place = self.page.locator(f"#{view}-view .readout")
        playwright.expect(place).to_contain_text(start)
        text: str = place.inner_text()
        return text

    def ink(self, view: str) -> int:
        """How many different colours its canvas shows."""
        script = """canvas => {
            const { width, height } = canvas;
            const { data } = canvas.getContext("2d").getImageData(0, 0, width, height);
            return new Set(new Uint32Array(data.buffer)).size;
        }"""
        colours: int = self.page.locator(f"#{view}-view canvas").evaluate(script)
        return colours


@pytest.fixture
def opened(browser: Any, report: Path) -> Iterator[Opened]:
    opened = Opened(browser, report)
    yield opened
    opened.context.close()
    assert opened.complaints == []
    assert opened.requests == [report.as_uri()]


def test_every_section_is_there_and_both_views_are_drawn(opened: Opened) -> None:
    for name in SECTIONS:
        assert opened.page.get_by_role("region", name=name, exact=True).first.is_visible()
    opened.readout("timeline", "Point at one to read it.")
    opened.readout("prefixes", "Point at a box to read it.")
    assert opened.ink("timeline") > 8 and opened.ink("prefixes") > 4


def test_the_timeline_steps_by_keys_and_zooms(opened: Opened, sweep: Path) -> None:
    steps = load(sweep / "fcfs-0").steps
    first = steps[steps["replica"] == 0].iloc[0]
    opened.readout("timeline", "Point at one")
    canvas = opened.page.locator("#timeline-view canvas")
    canvas.press("ArrowRight")
    text = opened.readout("timeline", f"Step 1 at {first['start_s']:.3f} s")
    assert f"{first['prefill_tokens']:,} prompt tokens computed in {first['prefill_rows']}" in text
    assert f"{first['running']} sequences run, {first['waiting']} wait" in text
    canvas.press("ArrowRight")
    opened.readout("timeline", "Step 2 at")
    before = canvas.evaluate("canvas => canvas.toDataURL()")
    canvas.press("+")
    assert canvas.evaluate("canvas => canvas.toDataURL()") != before
    canvas.press("Home")
    canvas.hover(position={"x": 600, "y": 100})
    assert opened.readout("timeline", "Step") != text
    opened.page.get_by_label("Replica").select_option("1")
    opened.readout("timeline", "Point at one")


def test_the_tree_answers_to_keys_mouse_and_time(opened: Opened, sweep: Path) -> None:
    summary = load(sweep).summary.set_index("run")
    view = opened.page.locator("#prefixes-view")
    canvas = view.locator("canvas")
    opened.readout("prefixes", "Point at a box")
    assert (
        f"60 of 60 requests, hit rate {summary.loc['fcfs-0', 'hit_rate']:.3f}" in view.inner_text()
    )
    canvas.press("ArrowRight")
    canvas.press("ArrowRight")
    assert "asked for by" in opened.readout("prefixes", "Tokens 0 to")
    whole = canvas.evaluate("canvas => canvas.toDataURL()")
    canvas.press("Enter")
    assert canvas.evaluate("canvas => canvas.toDataURL()") != whole
    canvas.press("Escape")
    assert canvas.evaluate("canvas => canvas.toDataURL()") == whole
    view.get_by_label("Until").fill("0")
    assert "0 of 60 requests, hit rate 0.000" in view.inner_text()
    assert "not asked for yet" in opened.readout("prefixes", "Tokens 0 to")
    view.get_by_label("Run", exact=True).select_option("1")
    opened.readout("prefixes", "Point at a box")
    assert f"hit rate {summary.loc['lpm-0', 'hit_rate']:.3f}" in view.inner_text()


def test_it_can_be_read_without_seeing_it(opened: Opened) -> None:
    bare = opened.page.evaluate("""() => [
        ...[...document.querySelectorAll("table")].filter(t => !t.caption).map(() => "table"),
        ...[...document.querySelectorAll("th")].filter(t => !t.scope).map(() => "th"),
        ...[...document.querySelectorAll("figure > svg")]
            .filter(s => s.getAttribute("role") !== "img" || !s.ariaLabel).map(() => "svg"),
        ...[...document.querySelectorAll("canvas")].filter(c => !c.ariaLabel).map(() => "canvas"),
        ...[...document.querySelectorAll("select, input")].filter(c => !c.labels.length),
        ...[...document.querySelectorAll("section")]
            .filter(s => !document.getElementById(s.getAttribute("aria-labelledby"))),
        ...(document.documentElement.lang ? [] : ["lang"]),
        ...(document.querySelectorAll("h1").length === 1 ? [] : ["h1"]),
    ]""")
    assert bare == []
    assert opened.page.locator("canvas[tabindex='0']").count() == 2


@pytest.mark.parametrize("width", [390, 1200])
def test_it_is_no_wider_than_the_screen(opened: Opened, width: int) -> None:
    opened.page.set_viewport_size({"width": width, "height": 800})
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= width


def test_dark_and_printed(browser: Any, report: Path) -> None:
    dark = Opened(browser, report, color_scheme="dark")
    paper = "getComputedStyle(document.documentElement).backgroundColor"
    dark.readout("timeline", "Point at one")
    assert dark.page.evaluate(paper) == "rgb(22, 24, 27)"
    assert dark.page.pdf().startswith(b"%PDF")
    dark.page.emulate_media(color_scheme="light")
    assert dark.page.evaluate(paper) == "rgb(255, 255, 255)"
    dark.context.close()
    assert dark.complaints == []


def test_without_javascript_the_rest_is_there(browser: Any, report: Path) -> None:
    opened = Opened(browser, report, java_script_enabled=False)
    assert "This view needs JavaScript." in opened.page.inner_text("#timeline")
    assert "fcfs" in opened.page.inner_text("#results")
    opened.context.close()


def test_a_clients_name_is_text_and_never_runs(browser: Any, tmp_path: Path) -> None:
    names = ("<script>document.title='ran'</script>", "--!><img src=x onerror=alert(1)>", "$a_")
    requests = [
        {
            "request": i,
            "client": name,
            "arrival_s": 0.5 * i,
            "admitted_s": 2.0 * i,
            "admitted_step": i + 1,
            "first_token_s": 2.0 * i + 1,
            "finish_s": 2.0 * i + 1,
            "prompt_tokens": 10,
            "output_tokens": 1,
            "decode_spans": f"{i + 1}-{i + 1}",
        }
        for i, name in enumerate(names)
    ]
    steps = [{"step": i + 1, "start_s": 2.0 * i, "end_s": 2.0 * i + 1} for i in range(len(names))]
    for scheduler in ("vtc.Vtc", "fair.Dlpm"):
        write_run(
            tmp_path / "sweep" / scheduler,
            config={
                "scheduler": {"_target_": f"testbed.policies.scheduling.{scheduler}"},
                "workload": {"name": names[0]},
                "seed": 0,
            },
            record=build_record(requests, steps),
            summary={**dict.fromkeys(SUMMARY_COLUMNS, 1.0), "max_service_gap": len(scheduler)},
            seed=0,
            wall_seconds=0.0,
            overrides={"scheduler": scheduler},
        )
    file = tmp_path / "report.html"
    file.write_text(report_page(load(tmp_path / "sweep"), tmp_path / "sweep"))
    opened = Opened(browser, file)
    opened.readout("timeline", "Point at one to read it.")
    assert opened.page.locator("svg[aria-label^='Service of each client']").count() == 1
    assert "compared" in opened.page.title()
    assert opened.page.locator("body img").count() == 0
    opened.context.close()
    assert opened.complaints == [] and opened.requests == [file.as_uri()]


def test_a_hundred_thousand_steps(browser: Any, tmp_path: Path) -> None:
    count = 100_000
    steps = {name: np.zeros(count, dtype=column.dtype) for name, column in STEP_COLUMNS.items()}
    steps["step"] = np.arange(1, count + 1)
    steps["start_s"] = np.arange(count) / 100
    steps["end_s"] = steps["start_s"] + 0.01
    steps["decode_rows"] = np.arange(count, dtype=np.int32) % 97
    record = RunRecord(
        columns_of([], REQUEST_COLUMNS), steps, None, {"num_pages": 10, "page_size": 16}
    )
    write_run(
        tmp_path / "run",
        config={"scheduler": "lpm", "seed": 0},
        record=record,
        summary=dict.fromkeys(SUMMARY_COLUMNS, 0.0),
        seed=0,
        wall_seconds=0.0,
    )
    file = tmp_path / "report.html"
    file.write_text(report_page(load(tmp_path / "run"), tmp_path / "run"))
    opened = Opened(browser, file)
    opened.readout("timeline", "100,000 steps in 1,000 s")
    canvas = opened.page.locator("#timeline-view canvas")
    for _ in range(12):
        canvas.press("+")
    canvas.hover(position={"x": 629, "y": 100})
    # Twelve halvings about the middle leave steps 49,988 to 50,012; 629 is the middle of the plot.
    assert abs(int(opened.readout("timeline", "Step").split()[1].replace(",", "")) - 50_000) < 13
    opened.context.close()
    assert opened.complaints == []
