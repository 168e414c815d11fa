"""`testbed validate` and `testbed calibrate` on tiny models: verdicts, folders, exit statuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import testbed
from testbed.cli import main
from testbed.engine import executor, kv_pool
from testbed.sim.fitted import FittedLatency, write_latency

EQUAL = "equal: the simulator repeats every decision of the engine\n"


def test_decisions_are_equal_under_evictions_and_preemptions(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["validate"]) == 0
    counts, verdict = capsys.readouterr().out.splitlines(keepends=True)
    assert verdict == EQUAL
    assert " 0 evict" not in counts
    assert " 0 preempt" not in counts


@pytest.mark.parametrize(
    "options",
    [
        ["--scheduler", "dlpm", "--eviction", "lfu", "--page-size", "1", "--rate", "200"],
        ["--batching", "prefill_first", "--insert-at", "schedule", "--model", "tiny-qwen3"],
        ["--scheduler", "testbed.policies.scheduling.arrival:Fcfs", "--reserve", "full"],
        ["--chunk-size", "0", "--pages", "40", "--requests", "5", "--seed", "3"],
        ["--no-share-prefixes", "--requests", "12"],
    ],
)
def test_every_switch_is_obeyed_by_both(
    options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["validate", *options]) == 0
    assert EQUAL in capsys.readouterr().out


def test_a_pool_may_take_what_memory_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 8192 bytes a page; nine tenths of a MiB hold 115, of which one is for padding.
    monkeypatch.setattr(kv_pool, "free_bytes", lambda device: 2**20)
    folder = tmp_path / "run"
    assert main(["validate", "--pages", "auto", "--requests", "4", "--output", str(folder)]) == 0
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["counters"]["num_pages"] == 114


def test_policies_that_weigh_costs_see_the_calibrated_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # A second for each computed token makes all nodes worth the same; so do not seconds of a step.
    file = tmp_path / "latency.json"
    write_latency(file, FittedLatency({"step": 0.1}), {})
    options = ["validate", "--eviction", "gdsf", "--output"]
    assert main([*options, str(tmp_path / "plain")]) == 0
    assert main([*options, str(tmp_path / "priced"), "--latency", str(file)]) == 0
    file.unlink()
    assert main(["validate", str(tmp_path / "priced")]) == 0
    assert capsys.readouterr().out.count(EQUAL) == 3
    plain, priced = (testbed.load(tmp_path / name).decisions for name in ("plain", "priced"))
    assert not plain.equals(priced)


@pytest.fixture
def folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert main(["validate", "--requests", "8", "--output", str(tmp_path / "run")]) == 0
    capsys.readouterr()
    return tmp_path / "run"


def test_a_recorded_run_is_loaded_and_replayed(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = testbed.load(folder)
    assert len(run.requests) == len(run.added) == 8
    assert len(run.steps) == len(run.measured)
    assert run.measured["tokens"].map(len).tolist() == run.measured["logit_rows"].tolist()
    manifest = json.loads((folder / "manifest.json").read_text())
    assert (manifest["model"], manifest["dtype"]) == ("tiny-llama", "float32")
    # 2 layers, 2 KV heads of 16 numbers of 4 bytes, keys and values, 16 tokens a page.
    assert manifest["counters"]["bytes_per_page"] == 2 * 2 * 16 * 4 * 2 * 16
    assert main(["validate", str(folder)]) == 0
    assert EQUAL in capsys.readouterr().out


def test_a_difference_is_shown_from_both_sides(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = folder / "decisions.parquet"
    decisions = pd.read_parquet(file)
    place = int(decisions.index[decisions["kind"] == "admit"][2])
    row = decisions.loc[place]
    decisions.loc[place, "tokens"] += 16
    decisions.to_parquet(file)
    assert main(["validate", str(folder)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == f"different from decision {place} on"
    start = f"step {row['step']} admit: replica 0, request {row['request']}, tokens"
    assert lines[2].split(maxsplit=1)[0] == "engine"
    assert f"{start} {row['tokens'] + 16}," in lines[2]
    assert lines[3].split(maxsplit=1)[0] == "simulator"
    assert f"{start} {row['tokens']}," in lines[3]


def test_a_simulator_that_decides_otherwise_is_caught(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = (folder / "config.yaml").read_text()
    (folder / "config.yaml").write_text(config.replace("num_pages: ", "num_pages: 1"))
    assert main(["validate", str(folder)]) == 1
    assert "different from decision" in capsys.readouterr().out


@pytest.fixture
def reason(monkeypatch: pytest.MonkeyPatch) -> str:
    """Why every run fails at step 30."""
    execute = executor.ModelExecutor.execute

    def breaks(self: Any, batch: Any) -> Any:
        if batch.step == 30:
            raise RuntimeError("the device is gone")
        return execute(self, batch)

    monkeypatch.setattr(executor.ModelExecutor, "execute", breaks)
    return "step 30: RuntimeError: the device is gone"


def test_a_failing_step_leaves_its_run_marked_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], reason: str
) -> None:
    folder = tmp_path / "run"
    assert main(["validate", "--output", str(folder)]) == 1
    assert capsys.readouterr().out == (
        f"the run failed at {reason}; what was done is in {folder}\n"
    )
    assert not (folder / "COMPLETE").exists()
    assert (folder / "FAILED").read_text().strip() == reason
    assert len(pd.read_parquet(folder / "measured.parquet")) == 29
    assert main(["validate", str(folder)]) == 2
    assert f"the run failed: {reason}" in capsys.readouterr().err


def test_a_failing_step_ends_calibrate_and_free_running_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], reason: str
) -> None:
    assert main(["calibrate", "--output", str(tmp_path / "latency.json")]) == 1
    assert capsys.readouterr().out == f"the run failed at {reason}\n"
    assert not (tmp_path / "latency.json").exists()
    file = tmp_path / "calibrated.json"
    write_latency(file, FittedLatency({"step": 0.1}), {"grid": {}})
    assert main(["validate", "--free-running", "--latency", str(file)]) == 1
    assert capsys.readouterr().out.endswith(f"the run failed at {reason}\n")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model", "tiny-gpt"], "model='tiny-gpt': one of tiny-llama"),
        (["--device", "tpu"], "device='tpu': cpu or cuda is needed"),
        (["--scheduler", "best"], "unknown scheduling policy 'best'"),
        (["--eviction", "worst"], "unknown eviction policy 'worst'"),
        (["--workload", "none.jsonl"], "none.jsonl: no such file"),
        (["--chunk-size", "8"], "chunk_size=8: at least page_size=16 is needed"),
        (["--chunk-size", "-1"], "chunk_size=-1: at least 0 is needed"),
        (["--rate", "-1"], "rate"),
        (["nowhere"], "nowhere: no such folder"),
        (["--free-running", "--latency", "none.json"], "none.json': no such file"),
        (["--latency", "none.json"], "none.json': no such file"),
        (["--pages", "999999999"], "are free on cpu"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["validate", *options]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert message in shown.err
    assert shown.err.startswith("error: ")
    assert shown.err.count("\n") == 1


def test_a_complete_run_is_not_run_again(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", "--requests", "8", "--output", str(folder)]) == 2
    assert f"`testbed validate {folder}` replays it" in capsys.readouterr().err
    assert main(["validate", "--requests", "9", "--output", str(folder)]) == 2
    assert "holds a complete run of another config" in capsys.readouterr().err


def test_a_simulated_run_cannot_be_replayed(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "measured.parquet").unlink()
    assert main(["validate", str(folder)]) == 2
    assert "a run that an engine recorded is needed" in capsys.readouterr().err


def test_free_running_needs_what_the_calibration_covered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "latency.json"
    write_latency(file, FittedLatency({"step": 0.1}), {})
    assert main(["validate", "--free-running", "--latency", str(file)]) == 2
    assert capsys.readouterr().err == (
        f"error: latency='{file}': a file that `testbed calibrate` wrote is needed\n"
    )


def test_calibrate_stores_what_free_running_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TESTBED_CACHE", str(tmp_path))
    small = ["--max-running", "3", "--max-context", "64", "--chunk-size", "32", "--passes", "1"]
    assert main(["calibrate", *small]) == 0
    printed = capsys.readouterr().out
    for kind in ("decode", "prefill", "mixed", "all"):
        assert f"\n{kind} " in printed
    (file,) = (tmp_path / "latency").rglob("*.json")
    assert file.name == "tiny-llama-float32.json"
    assert printed.endswith(f"latency model: {file}\n")
    facts = json.loads(file.read_text())
    assert facts["grid"]["max_running"] == 3
    assert facts["seconds"]["step"] > 0
    assert facts["share_prefixes"] is True
    free = ["--free-running", "--requests", "6", "--runs", "2", "--threads", "2"]
    free += ["--no-share-prefixes"]
    assert main(["validate", *free, "--figure", str(tmp_path / "fidelity")]) == 0
    printed = capsys.readouterr().out
    for name in ("below", "at", "past", "thrashing"):
        assert f"\n{name} " in printed
    assert "note: calibrated with threads 1, here it is 2" in printed
    assert "note: calibrated with share_prefixes True, here it is False" in printed
    assert (tmp_path / "fidelity.csv").is_file()
