"""Two folders before and after: what is printed, and what a shell is told."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from testbed.cli import main
from testbed.core.records import REQUEST_COLUMNS, STEP_COLUMNS, RunRecord, columns_of
from testbed.metrics.results import write_run
from testbed.metrics.summary import SUMMARY_COLUMNS

RECORD = RunRecord(columns_of([], REQUEST_COLUMNS), columns_of([], STEP_COLUMNS), None, {})


def write(folder: Path, eviction: str, rates: dict[int, float], workload: str = "rag") -> str:
    """A run of each seed with its hit rate."""
    for seed, rate in rates.items():
        write_run(
            folder / str(seed),
            config={"workload": workload, "eviction": eviction, "seed": seed},
            record=RECORD,
            summary={**dict.fromkeys(SUMMARY_COLUMNS, math.nan), "hit_rate": rate},
            seed=seed,
            wall_seconds=0.0,
            overrides={"workload": workload, "eviction": eviction},
        )
    return str(folder)


@pytest.fixture
def before(tmp_path: Path) -> str:
    return write(tmp_path / "before", "lru", {0: 0.50, 1: 0.52, 2: 0.48})


def test_nothing_worse_is_status_0(
    before: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    after = write(tmp_path / "after", "lfu", {0: 0.55, 1: 0.57, 2: 0.53})
    assert main(["compare", before, after]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"before: {before}, 3 runs, commit ")
    assert "+0.0500 ±0.0000" in out and "better" in out
    assert "changed: eviction: lru -> lfu\n" in out
    assert out.endswith("verdicts: 1 better\n")


def test_worse_is_status_1(before: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    after = write(tmp_path / "after", "lru", {0: 0.45, 1: 0.47, 2: 0.43})
    assert main(["compare", before, after]) == 1
    assert "verdicts: 1 worse" in capsys.readouterr().out
    # 0.05 of 0.50 are 10 %.
    assert main(["compare", before, after, "--margin", "0.11"]) == 0
    assert main(["compare", before, after, "--margin", "0.09"]) == 1


def test_noise_and_a_single_pair_are_status_0(
    before: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    noisy = write(tmp_path / "noisy", "lru", {0: 0.40, 1: 0.60, 2: 0.45})
    assert main(["compare", before, noisy]) == 0
    assert "within noise" in capsys.readouterr().out
    single = write(tmp_path / "single", "lru", {0: 0.40, 7: 0.60})
    assert main(["compare", str(Path(before) / "0"), str(Path(single) / "0")]) == 0
    assert "a single pair has no interval" in capsys.readouterr().out


def test_what_is_missing_after_is_status_1(
    before: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fewer = write(tmp_path / "fewer", "lru", {0: 0.50, 7: 0.60})
    assert main(["compare", before, fewer]) == 1
    out = capsys.readouterr().out
    assert "missing after: run seed 1, run seed 2\nnew, without one before: run seed 7\n" in out
    assert main(["compare", fewer, before, "--metric", "hit_rate"]) == 1
    unmeasured = write(tmp_path / "unmeasured", "lru", {0: 0.50, 1: math.nan, 2: math.nan})
    capsys.readouterr()
    assert main(["compare", before, unmeasured]) == 1
    out = capsys.readouterr().out
    assert "hit rate: measured in 3 before, 1 after; 1 pair of 3" in out
    assert out.endswith("verdicts: 1 lost\n")
    assert main(["compare", unmeasured, before]) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{before}", "nowhere"], "nowhere: no such folder"),
        (["{before}", "{other}"], "workload is rag in run 0 before and chat in run 0 after"),
        (["{before}", "{before}", "--baseline", "x"], "--baseline: only with one folder"),
        (["{before}", "--margin", "0.1"], "--margin: only with two folders"),
        (["{before}", "{before}", "--metric", "speed"], "metric='speed': one of hit_rate"),
        (["{before}", "{before}", "--margin", "inf"], "margin=inf: a fraction from 0 on"),
        ([""], "an empty path: the folder of a run or of a sweep is needed"),
        (["{before}", ""], "an empty path: the folder of a run or of a sweep is needed"),
        (["{before}/0/summary.json"], "summary.json is a file; the folder of a run"),
        (["{before}", "--figure", ""], "--figure='': the beginning of a file's name is needed"),
        (["{before}", "--figure", "{before}/0/COMPLETE/x"], "COMPLETE is a file, not a folder"),
        (["{before}", "{before}", "--margin", "-1"], "margin=-1.0: a fraction from 0 on"),
        (["{before}", "{before}", "--by", "colour"], "by='colour': one of the options"),
    ],
)
def test_a_mistake_is_status_2(
    before: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    other = write(tmp_path / "other", "lru", {0: 0.5}, workload="chat")
    assert main(["compare", *(a.format(before=before, other=other) for a in arguments)]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and message in shown.err and shown.err.count("\n") == 1
