from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from testbed.cli import main
from testbed.core.records import REQUEST_COLUMNS, STEP_COLUMNS, RunRecord, columns_of
from testbed.metrics.results import ResultsError, write_run
from testbed.metrics.summary import SUMMARY_COLUMNS


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """Two runs whose hit rates are 0.25 and 0.75."""
    record = RunRecord(
        requests=columns_of([], REQUEST_COLUMNS),
        steps=columns_of([], STEP_COLUMNS),
        decisions=None,
        counters={"num_pages": 1, "page_size": 1},
    )
    for name, rate in (("fcfs", 0.25), ("lpm", 0.75)):
        write_run(
            tmp_path / "sweep" / name,
            config={"scheduler": name, "seed": 0},
            record=record,
            summary={**dict.fromkeys(SUMMARY_COLUMNS, math.nan), "hit_rate": rate},
            seed=0,
            wall_seconds=0.0,
            overrides={"scheduler": name},
        )
    return tmp_path / "sweep"


def test_compare_prints_a_row_for_each_run(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(sweep)]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert {row[0]: row[1] for row in rows if row and row[0] in ("fcfs", "lpm")} == {
        "fcfs": "0.250",
        "lpm": "0.750*",
    }


def test_compare_with_a_baseline_prints_differences(
    sweep: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", str(sweep), "--by", "scheduler", "--baseline", "fcfs"]) == 0
    assert "+0.500" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["figure", "figure.pdf"])
def test_compare_draws_a_figure(
    sweep: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert main(["compare", str(sweep), "--figure", str(tmp_path / name)]) == 0
    written = {path.name for path in tmp_path.glob("figure*")}
    assert written == {"figure.pdf", "figure.png", "figure.csv"}
    assert str(tmp_path / "figure.pdf") in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["compare", "nowhere"], "nowhere: no such folder"),
        (["compare", "{sweep}", "--by", "colour"], "by='colour'"),
        (["compare", "{sweep}", "--baseline", "sjf"], "baseline='sjf': one of fcfs, lpm is needed"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(
    sweep: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main([argument.format(sweep=sweep) for argument in arguments]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("error: ")
    assert message in shown.err
    assert shown.err.count("\n") == 1


def test_a_reader_that_leaves_ends_it_quietly() -> None:
    read, write = os.pipe()
    os.close(read)
    program = "import sys; from testbed.cli import main; sys.exit(main(['policy', 'list']))"
    run = subprocess.run([sys.executable, "-c", program], stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    assert (run.returncode, run.stderr) == (141, b"")


def test_no_command_is_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([])
    assert stopped.value.code == 2


def run_with(body: str) -> subprocess.CompletedProcess[str]:
    program = f"import sys; from testbed import cli\n{body}"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)


def test_ctrl_c_ends_it_quietly() -> None:
    run = run_with(
        "def stop(*_): raise KeyboardInterrupt\n"
        "cli.policy.add = lambda c: c.add_parser('stop').set_defaults(command=stop)\n"
        "sys.exit(cli.main(['stop']))"
    )
    assert (run.returncode, run.stderr) == (130, "")


def test_a_closed_output_is_named() -> None:
    program = "import sys; from testbed.cli import main; sys.exit(main(['policy', 'list']))"
    run = subprocess.run(
        ["sh", "-c", '"$0" -c "$1" >&-', sys.executable, program], capture_output=True, text=True
    )
    assert run.returncode == 2
    assert run.stderr == "error: the standard output is closed; give it a file or /dev/null\n"


def test_results_that_cannot_be_read_are_a_users_mistake(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(options: object) -> int:
        raise ResultsError("the run failed")

    def faulty(options: object) -> int:
        raise ZeroDivisionError

    for command in (broken, faulty):
        monkeypatch.setattr(
            "testbed.commands.policy.add",
            lambda c, run=command: c.add_parser("go").set_defaults(command=run),
        )
        if command is broken:
            assert main(["go"]) == 2
            assert capsys.readouterr().err == "error: the run failed\n"
        else:
            with pytest.raises(ZeroDivisionError):
                main(["go"])
