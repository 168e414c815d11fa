"""`testbed report`: where the page goes, and what it can rebuild."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from testbed.cli import main
from testbed.commands.report import asked
from testbed.core.records import (
    ADDED_COLUMNS,
    REQUEST_COLUMNS,
    STEP_COLUMNS,
    RunRecord,
    added_row,
    columns_of,
)
from testbed.core.request import Request
from testbed.metrics.loading import load
from testbed.metrics.results import write_run
from tests.reports.page_runs import write_sweep


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sweep(tmp_path_factory.mktemp("results") / "sweep", ("fcfs",), (0,))


def test_a_sweep_gets_its_page_inside(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(sweep)]) == 0
    assert capsys.readouterr().out.startswith(f"report: {sweep / 'report.html'} (")
    assert (sweep / "report.html").read_text().startswith("<!doctype html>")


def test_a_runs_page_lies_beside_it(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(sweep / "fcfs-0")]) == 0
    assert (sweep / "fcfs-0.html").is_file()
    # A run's folder with anything else in it would be no run's folder any more.
    assert not (sweep / "fcfs-0" / "report.html").exists()


def test_the_page_goes_where_it_is_told_to(sweep: Path, tmp_path: Path) -> None:
    assert main(["report", str(sweep), "-o", str(tmp_path / "deep" / "page.html")]) == 0
    assert (tmp_path / "deep" / "page.html").is_file()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "nowhere: no such folder"),
        (["{sweep}", "--run", "x"], "run='x': one of the runs is needed: fcfs-0"),
        (["{sweep}", "--by", "colour"], "by='colour': one of the options is needed"),
    ],
)
def test_a_mistake_is_one_line(
    sweep: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    output = tmp_path / "page.html"
    given = [argument.format(sweep=sweep) for argument in arguments]
    assert main(["report", *given, "-o", str(output)]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and message in shown.err and shown.err.count("\n") == 1
    assert not output.exists()


def test_prompts_are_made_again_from_the_config(sweep: Path) -> None:
    results = load(sweep)
    again = asked(results, "fcfs-0")
    assert again is not None
    lengths = {request.id: len(request.prompt) for request in again}
    served = results.requests.set_index("request")["prompt_tokens"].to_dict()
    assert lengths == served


def test_an_engine_runs_prompts_are_those_it_wrote_down(tmp_path: Path) -> None:
    requests = [Request(i, np.arange(i + 1, dtype=np.int32), max_new_tokens=1) for i in range(3)]
    write_run(
        tmp_path / "run",
        config={"workload": "shared", "seed": 0},
        record=RunRecord(columns_of([], REQUEST_COLUMNS), columns_of([], STEP_COLUMNS), None, {}),
        summary={},
        seed=0,
        wall_seconds=0.0,
        added=columns_of([added_row(r, 0.0, "") for r in requests], ADDED_COLUMNS),
    )
    again = asked(load(tmp_path / "run"), "run")
    assert again is not None
    assert [r.prompt.tolist() for r in again] == [[0], [0, 1], [0, 1, 2]]


@pytest.mark.parametrize(
    "workload",
    [
        "mooncake",
        {"_target_": "os.system", "command": "exit 1"},
        {"_target_": "testbed.workloads.NoSuch"},
        {"_target_": "testbed.workloads.MooncakeTrace", "path": "no/such/trace.jsonl"},
        {"_target_": "testbed.workloads.RagWorkload", "colour": "red"},
    ],
)
def test_what_cannot_be_made_again_is_left_out(tmp_path: Path, workload: object) -> None:
    write_run(
        tmp_path / "run",
        config={"workload": workload, "seed": 0},
        record=RunRecord(columns_of([], REQUEST_COLUMNS), columns_of([], STEP_COLUMNS), None, {}),
        summary={},
        seed=0,
        wall_seconds=0.0,
    )
    assert asked(load(tmp_path / "run"), "run") is None
