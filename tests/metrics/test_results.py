"""Run folders: whole or absent, equal bytes for equal runs, and read back as frames."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import testbed
from testbed.core.records import REQUEST_COLUMNS, STEP_COLUMNS, RunRecord
from testbed.metrics import results
from testbed.metrics.loading import load
from testbed.metrics.results import ResultsError, config_hash, is_complete, write_run

CONFIG = {"scheduler": {"_target_": "some.module.DfsWeight", "k": 3}, "seed": 1, "names": ["a"]}


@pytest.fixture
def record(make_record: Any) -> RunRecord:
    return make_record(
        [
            {"request": i, "client": "ä", "prompt_tokens": 5, "decode_spans": "1-2"}
            for i in range(3)
        ],
        [{"step": 1, "end_s": 0.5}, {"step": 2, "end_s": 0.75}],
        decisions=[{"step": 1, "kind": "admit", "digest": 2**32 - 1}],
    )


def write(folder: Path, record: RunRecord, **changed: Any) -> None:
    arguments: dict[str, Any] = {
        "config": CONFIG,
        "record": record,
        "summary": {"hit_rate": 0.5, "tpot_p50_s": math.nan},
        "seed": 1,
        "wall_seconds": 2.5,
    }
    write_run(folder, **(arguments | changed))


def test_a_run_is_read_back_as_it_was_written(tmp_path: Path, record: RunRecord) -> None:
    write(tmp_path / "sweep" / "a", record, overrides={"scheduler": "dfs_weight"})
    run = testbed.load(tmp_path / "sweep" / "a")
    for frame, columns in ((run.requests, record.requests), (run.steps, record.steps)):
        assert list(frame) == ["run", *columns]
        assert set(frame["run"]) == {"a"}
        for name, values in columns.items():
            assert frame[name].tolist() == values.tolist()
    assert run.requests["turn"].dtype == np.int32
    assert run.decisions["digest"].tolist() == [2**32 - 1]
    assert run.config.loc[0, ["scheduler", "scheduler.k", "names"]].tolist() == [
        "dfs_weight",
        3,
        ["a"],
    ]
    summary = run.summary.iloc[0]
    assert (summary["run"], summary["seed"], summary["scheduler"]) == ("a", 1, "dfs_weight")
    assert summary["hit_rate"] == 0.5
    assert math.isnan(summary["tpot_p50_s"])
    assert run.summary["tpot_p50_s"].dtype == np.float64
    manifest = json.loads((tmp_path / "sweep" / "a" / "manifest.json").read_text())
    assert manifest["wall_seconds"] == 2.5
    assert manifest["hardware"].endswith(f", {os.cpu_count()} cores")
    assert manifest["versions"]["numpy"] == np.__version__
    assert manifest["counters"]["num_pages"] == 10
    assert (tmp_path / "sweep" / "a" / "COMPLETE").read_text().strip() == config_hash(CONFIG)


def test_equal_runs_have_equal_bytes(tmp_path: Path, record: RunRecord) -> None:
    write(tmp_path / "a", record)
    write(tmp_path / "b", record)
    for path in sorted((tmp_path / "a").iterdir()):
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes(), path.name


def test_the_hash_ignores_the_order_of_keys_only() -> None:
    assert config_hash({"a": 1, "b": {"c": 2, "d": 3}}) == config_hash(
        {"b": {"d": 3, "c": 2}, "a": 1}
    )
    assert config_hash({"a": 1}) != config_hash({"a": 2})


def test_a_complete_run_is_kept_or_refused(tmp_path: Path, record: RunRecord) -> None:
    folder = tmp_path / "a"
    assert not is_complete(folder, config_hash(CONFIG))
    write(folder, record)
    assert is_complete(folder, config_hash(CONFIG))
    other = {**CONFIG, "seed": 2}
    with pytest.raises(ResultsError, match=r"a holds a complete run of another config"):
        is_complete(folder, config_hash(other))
    with pytest.raises(ResultsError, match=r"a holds a complete run of another config"):
        write(folder, record, config=other)
    assert load(folder).summary.loc[0, "hit_rate"] == 0.5
    write(folder, record, summary={"hit_rate": 0.75})
    assert load(folder).summary.loc[0, "hit_rate"] == 0.5
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("content", [b"", b"\n", b"\xff\xfe", b"0123", b"0" * 10_000])
def test_a_damaged_marker_names_the_folder(
    tmp_path: Path, record: RunRecord, content: bytes
) -> None:
    write(tmp_path / "a", record)
    (tmp_path / "a" / "COMPLETE").write_bytes(content)
    with pytest.raises(ResultsError, match=r"/a: COMPLETE is damaged; .* remove the folder"):
        is_complete(tmp_path / "a", config_hash(CONFIG))


def test_only_the_leftovers_of_writers_that_died_are_removed(
    tmp_path: Path, record: RunRecord
) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    dead = tmp_path / f".a.{ended.pid}.partial"
    alive = tmp_path / f".a.{os.getppid()}.partial"
    # As of a killed container whose processes were numbered as those of the next are.
    ours = tmp_path / f".a.{os.getpid()}.partial"
    for left_over in (dead, alive, ours):
        left_over.mkdir()
    write(tmp_path / "a", record)
    assert sorted(path.name for path in tmp_path.iterdir()) == [alive.name, "a"]


def test_a_folder_with_other_files_is_not_touched(tmp_path: Path, record: RunRecord) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ResultsError, match=r"holds 'thesis\.tex', which is no part of a run"):
        write(tmp_path, record)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_an_empty_folder_and_the_leftovers_of_killed_runs_are_replaced(
    tmp_path: Path, record: RunRecord
) -> None:
    (tmp_path / "a").mkdir()
    left_over = tmp_path / f".a.{2**31 - 1}.partial"
    left_over.mkdir()
    (left_over / "COMPLETE").write_text("half a run")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "requests.parquet").write_text("half a table")
    with pytest.raises(ResultsError, match="no complete run in it"):
        load(tmp_path)
    write(tmp_path / "a", record)
    write(tmp_path / "b", record)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]
    assert list(load(tmp_path).folders) == ["a", "b"]


@pytest.mark.parametrize("fails_at", ["_write_table", "_write_json", "_sync"])
def test_a_failing_write_leaves_nothing(
    tmp_path: Path, record: RunRecord, monkeypatch: pytest.MonkeyPatch, fails_at: str
) -> None:
    def fail(*_: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(results, fails_at, fail)
    with pytest.raises(OSError, match="disk full"):
        write(tmp_path / "a", record)
    assert list(tmp_path.iterdir()) == []


def test_the_marker_is_the_last_file_written(
    tmp_path: Path, record: RunRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    monkeypatch.setattr(results, "_sync", lambda path: synced.append(path.name))
    write(tmp_path / "a", record)
    assert synced[-3:] == ["COMPLETE", f".a.{os.getpid()}.partial", tmp_path.name]
    of_engines = {"added.parquet", "measured.parquet", "FAILED"}
    assert set(synced[:-3]) == set(results.RUN_FILES) - {"COMPLETE"} - of_engines


def test_a_nested_sweep_has_a_row_for_each_run(tmp_path: Path, record: RunRecord) -> None:
    lpm = {**CONFIG, "scheduler": {"_target_": "some.module.Lpm"}, "cache": {"tokens": 7}}
    without = record._replace(decisions=None)
    write(tmp_path / "x" / "2", without, overrides={"seed": "1"}, write_steps=False)
    write(tmp_path / "x" / "1", record)
    write(tmp_path / "y", without, config=lpm, overrides={"scheduler": "lpm", "cache.tokens": 7})
    sweep = load(tmp_path)
    assert sweep.summary["run"].tolist() == ["x/1", "x/2", "y"]
    assert sweep.overrides == ["scheduler", "cache.tokens"]
    # What a run did not override is what its config says, if it says anything.
    assert sweep.summary["scheduler"].tolist() == ["dfs_weight", "dfs_weight", "lpm"]
    assert sweep.summary["cache.tokens"].isna().tolist() == [True, True, False]
    assert len(sweep.requests) == 9
    assert set(sweep.steps["run"]) == {"x/1", "y"}
    assert set(sweep.decisions["run"]) == {"x/1"}


def test_a_table_that_no_run_wrote_is_empty(tmp_path: Path, record: RunRecord) -> None:
    write(tmp_path / "a", record._replace(decisions=None), write_steps=False)
    run = load(tmp_path / "a")
    assert list(run.steps) == ["run", *STEP_COLUMNS]
    assert len(run.steps) == len(run.decisions) == 0


def test_a_run_without_requests_keeps_its_columns(tmp_path: Path, make_record: Any) -> None:
    write(tmp_path / "a", make_record([], []))
    assert list(load(tmp_path / "a").requests) == ["run", *REQUEST_COLUMNS]


def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ResultsError, match="nowhere: no such folder"):
        load(tmp_path / "nowhere")


def test_the_commit_is_recorded_for_a_checkout_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("git") is None:
        pytest.skip("git is not installed")

    def git(*arguments: str) -> str:
        command = ["git", "-c", "user.name=n", "-c", "user.email=e", *arguments]
        return subprocess.run(
            command, cwd=tmp_path, check=True, capture_output=True, text=True
        ).stdout.strip()

    source = tmp_path / "results.py"
    source.write_text("one")
    monkeypatch.setattr(results, "__file__", str(source))
    git("init", "--quiet")
    assert results._git_commit() is None
    git("add", "results.py")
    git("commit", "--quiet", "--message", "one")
    head = git("rev-parse", "HEAD")
    assert results._git_commit() == head
    source.write_text("two")
    assert results._git_commit() == f"{head}-dirty"


def test_importing_the_package_leaves_pandas_out() -> None:
    program = "import sys, testbed; print('pandas' in sys.modules, hasattr(testbed, 'nothing'))"
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert run.stdout.split() == ["False", "False"]


def test_clients_are_summed_over_their_admitted_requests(tmp_path: Path, make_record: Any) -> None:
    rows = [
        {
            "client": "a",
            "prompt_tokens": 10,
            "cached_tokens": 4,
            "output_tokens": 3,
            "program": "p",
        },
        {"client": "a", "prompt_tokens": 6, "cached_tokens": 0, "output_tokens": 1},
        {"client": "a", "prompt_tokens": 99, "admitted_step": -1, "status": "refused"},
        {"client": "b", "prompt_tokens": 5, "cached_tokens": 5, "output_tokens": 2},
    ]
    for row, first_token_s in zip(rows, (2.0, 4.0, 0.0, 1.5), strict=True):
        row["first_token_s"] = first_token_s
    write(tmp_path / "run", make_record(rows, []))
    a, b = testbed.load(tmp_path / "run").clients.to_dict("records")
    # Service is prompt + 2 * output tokens; extended service leaves the cached ones out.
    assert a == {
        "run": "run",
        "client": "a",
        "requests": 2,
        "prompt_tokens": 16,
        "cached_tokens": 4,
        "output_tokens": 4,
        "ttft_mean_s": 3.0,
        "ttft_p50_s": 3.0,
        "ttft_p99_s": 2.0 + 0.99 * 2.0,
        "hit_rate": 0.25,
        "service": 24.0,
        "extended_service": 20.0,
    }
    assert (b["service"], b["extended_service"], b["hit_rate"]) == (9.0, 4.0, 1.0)
    (program,) = testbed.load(tmp_path / "run").programs.to_dict("records")
    assert (program["program"], program["requests"], program["service"]) == ("p", 1, 16.0)


@pytest.mark.parametrize(
    ("file", "content", "frame"),
    [
        ("config.yaml", "a: [", "summary"),
        ("config.yaml", "", "config"),
        ("summary.json", "", "summary"),
        ("summary.json", "[1]", "summary"),
        ("manifest.json", "{}", "summary"),
        ("requests.parquet", "no table", "requests"),
        ("requests.parquet", None, "requests"),
    ],
)
def test_a_damaged_run_is_an_error_that_names_the_file(
    tmp_path: Path, record: RunRecord, file: str, content: str | None, frame: str
) -> None:
    write(tmp_path / "run", record)
    path = tmp_path / "run" / file
    path.unlink()
    if content is not None:
        path.write_text(content)
    with pytest.raises(ResultsError, match=rf"{file} is .*damaged"):
        getattr(load(tmp_path), frame)
