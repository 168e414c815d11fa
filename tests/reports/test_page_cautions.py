"""Each warning where it is due, and none where it is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from testbed.core.records import REQUEST_COLUMNS, STEP_COLUMNS, RunRecord, columns_of
from testbed.metrics.loading import load
from testbed.metrics.results import FAILED, write_run
from testbed.reports.comparison import compare
from testbed.reports.page.cautions import cautions

GOOD = {"finished": 5000, "refused": 0, "skipped_lines": 0}


def record(arrivals: list[float], admissions: list[float]) -> RunRecord:
    zero = {name: "" if column.dtype == "str" else 0 for name, column in REQUEST_COLUMNS.items()}
    rows = [
        tuple({**zero, "status": "finished", "arrival_s": a, "admitted_s": b}.values())
        for a, b in zip(arrivals, admissions, strict=True)
    ]
    return RunRecord(columns_of(rows, REQUEST_COLUMNS), columns_of([], STEP_COLUMNS), None, {})


STEADY = record([0.0, 1.0, 2.0], [0.0, 1.0, 2.0])


class Sweep:
    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.commit = monkeypatch.setattr

    def run(self, scheduler: str, seed: int, commit: str = "abc", **terms: Any) -> None:
        self.commit("testbed.metrics.results._git_commit", lambda: commit)
        write_run(
            self.folder / f"{scheduler}-{seed}-{terms.pop('name', '')}",
            config={"scheduler": scheduler, "seed": seed},
            record=terms.pop("record", STEADY),
            # Runs whose every number is the same would be one sample.
            summary={**GOOD, "makespan_s": float(seed), **terms.pop("summary", {})},
            seed=seed,
            wall_seconds=0.0,
            overrides={"scheduler": scheduler},
            **terms,
        )

    def cautions(self) -> list[str]:
        results = load(self.folder)
        return cautions(results, compare(results), self.folder)


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sweep:
    return Sweep(tmp_path / "sweep", monkeypatch)


def test_a_sound_sweep_has_none(sweep: Sweep) -> None:
    for seed in range(3):
        sweep.run("fcfs", seed, summary={"hit_rate": 0.1 + 0.01 * seed})
        sweep.run("lpm", seed, summary={"hit_rate": 0.5 + 0.01 * seed})
    assert sweep.cautions() == []


def test_a_queue_that_never_drains(sweep: Sweep) -> None:
    # When the last request arrives, at 2, two of four still wait.
    for seed in range(3):
        sweep.run("fcfs", seed, record=record([0.0, 1.0, 1.5, 2.0], [0.0, 1.0, 2.5, 4.0]))
    (text,) = sweep.cautions()
    assert text.startswith("every run was saturated:") and "up to 50% of all requests" in text


def test_a_backlog_from_the_start(sweep: Sweep) -> None:
    for seed in range(3):
        sweep.run("fcfs", seed, record=record([0.0, 0.0], [0.0, 4.0]))
    (text,) = sweep.cautions()
    assert text.startswith("In every run all requests were there from the start")


def test_too_few_requests_and_seeds(sweep: Sweep) -> None:
    sweep.run("fcfs", 0, summary={"finished": 420})
    texts = sweep.cautions()
    assert texts[0].endswith(
        "finished as few as 420 requests: its 99th percentile rests on the slowest 4."
    )
    assert "one seed only" in texts[1]
    sweep.run("fcfs", 1)
    assert "two seeds only" in sweep.cautions()[1]


def test_differences_within_noise(sweep: Sweep) -> None:
    # lpm less fcfs: 0.01, 0.02, 0.03; half width 4.303 * 0.01 / sqrt(3) = 0.025.
    for seed in range(3):
        sweep.run("fcfs", seed, summary={"hit_rate": 0.3})
        sweep.run("lpm", seed, summary={"hit_rate": 0.31 + 0.01 * seed})
        sweep.run("vtc", seed, summary={"hit_rate": 0.1})
    (text,) = sweep.cautions()
    assert text.endswith("by paired 95 % intervals: in hit rate fcfs (best: lpm).")


def test_seeds_that_do_not_pair(sweep: Sweep) -> None:
    for seed in range(3):
        sweep.run("fcfs", seed)
        sweep.run("lpm", seed + 1)
    (text,) = sweep.cautions()
    assert "fcfs (0, 1, 2) and lpm (1, 2, 3)" in text


def test_oracles_refusals_and_skipped_lines(sweep: Sweep) -> None:
    for seed in range(3):
        summary = {"refused": 2, "skipped_lines": 1}
        sweep.run("fcfs", seed, summary=summary, oracles=["scheduler"])
    texts = sweep.cautions()
    assert texts[0].startswith("Oracles (†): fcfs.")
    assert texts[1].startswith("6 requests were refused") and texts[2].startswith("3 bad lines")


def test_where_the_runs_come_from(sweep: Sweep) -> None:
    for seed, commit in enumerate(("abc", "def-dirty", "abc")):
        sweep.run("fcfs", seed, commit)
    texts = sweep.cautions()
    assert texts[0] == "The runs come from different commits: abc and def-dirty."
    assert "uncommitted changes" in texts[1]


def test_runs_that_broke_off(sweep: Sweep) -> None:
    for seed in range(3):
        sweep.run("fcfs", seed)
    sweep.run("fcfs", 9, failure="it fell")
    assert (sweep.folder / "fcfs-9-" / FAILED).exists()
    assert sweep.cautions() == ["1 run broke off and is left out here: fcfs-9-."]
