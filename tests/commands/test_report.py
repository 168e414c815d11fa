"""`testbed report`: where the page goes, and what it can rebuild."""

from __future__ import annotations

from hashlib import sha256
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
from testbed.reports.page.prefixes import NoPrompts
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
        ([""], "an empty path: the folder of a run or of a sweep is needed"),
        (["{sweep}/fcfs-0/summary.json"], "summary.json is a file; the folder of a run"),
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
    assert len(shown.err) < 500


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("", "output '': the name of a file is needed"),
        ("{sweep}", "it is a folder; the name of a file is needed"),
        ("{sweep}/fcfs-0/summary.json", "is the folder of a run, which holds no more"),
        ("{sweep}/fcfs-0/page.html", "is the folder of a run, which holds no more"),
        ("{sweep}/fcfs-0/summary.json/x", "summary.json is a file, not a folder"),
    ],
)
def test_a_place_where_no_page_can_be(
    sweep: Path, capsys: pytest.CaptureFixture[str], output: str, message: str
) -> None:
    before = {path: path.read_bytes() for path in (sweep / "fcfs-0").iterdir()}
    assert main(["report", str(sweep), "-o", output.format(sweep=sweep)]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and message in shown.err and shown.err.count("\n") == 1
    assert {path: path.read_bytes() for path in (sweep / "fcfs-0").iterdir()} == before


def test_prompts_are_made_again_from_the_config(sweep: Path) -> None:
    results = load(sweep)
    again = asked(results, "fcfs-0")
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
    assert [r.prompt.tolist() for r in again] == [[0], [0, 1], [0, 1, 2]]


@pytest.mark.parametrize(
    ("workload", "reason"),
    [
        ("mooncake", "does not say how its workload is made"),
        ({"_target_": "os.system", "command": "exit 1"}, "one below testbed.workloads. is needed"),
        ({"_target_": "testbed.workloads.NoSuch"}, "NoSuch"),
        (
            {"_target_": "testbed.workloads.MooncakeTrace", "path": "no/such/trace.jsonl"},
            "a file that its workload reads is not here",
        ),
        ({"_target_": "testbed.workloads.RagWorkload", "colour": "red"}, "colour"),
        (
            {"_target_": "testbed.workloads.programs.JudgePrograms", "seed": 0},
            "LM programs ask as they go",
        ),
    ],
)
def test_what_cannot_be_made_again_is_told(tmp_path: Path, workload: object, reason: str) -> None:
    write_run(
        tmp_path / "run",
        config={"workload": workload, "seed": 0},
        record=RunRecord(columns_of([], REQUEST_COLUMNS), columns_of([], STEP_COLUMNS), None, {}),
        summary={},
        seed=0,
        wall_seconds=0.0,
    )
    with pytest.raises(NoPrompts, match=reason):
        asked(load(tmp_path / "run"), "run")


def test_a_trace_that_was_changed_since_is_not_taken_for_it(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"prompt_token_ids": [1, 2, 3], "output_token_ids": [4]}\n')
    write_run(
        tmp_path / "run",
        config={
            "workload": {
                "_target_": "testbed.workloads.FileWorkload",
                "path": str(trace),
            },
            "inputs": {"workload": sha256(trace.read_bytes()).hexdigest()[:16]},
            "seed": 0,
        },
        record=RunRecord(columns_of([], REQUEST_COLUMNS), columns_of([], STEP_COLUMNS), None, {}),
        summary={},
        seed=0,
        wall_seconds=0.0,
    )
    results = load(tmp_path / "run")
    (request,) = asked(results, "run")
    assert request.prompt.tolist() == [1, 2, 3]
    trace.write_text('{"prompt_token_ids": [1, 2, 9], "output_token_ids": [4]}\n')
    with pytest.raises(NoPrompts, match=r"trace.jsonl has changed since the run"):
        asked(results, "run")
