"""Run folders of engine runs: what a replay needs, and what is left of a run that broke off."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from testbed.core.records import (
    ADDED_COLUMNS,
    MEASURED_COLUMNS,
    Columns,
    RunRecord,
    added_requests,
    added_row,
    columns_of,
)
from testbed.core.request import Request
from testbed.metrics.loading import load
from testbed.metrics.results import ResultsError, is_complete, write_run

PLAIN = Request(0, np.array([5, 6, 7], dtype=np.int32), max_new_tokens=3)
RICH = Request(
    4,
    np.array([1, 2, 3], dtype=np.int32),
    np.array([8, 9], dtype=np.int32),
    max_new_tokens=7,
    stop_tokens=(3, 11),
    arrival=np.float64(1.25),
    client="ä",
    weight=0.5,
    priority=-2,
    namespace="n",
    program="p",
    turn=np.int64(3),
    deadline=9.5,
    expected_output=4,
    pin=2,
    retain_for=1.5,
)


def added() -> Columns:
    return columns_of([added_row(PLAIN, 0.0, ""), added_row(RICH, 1.5, "too long")], ADDED_COLUMNS)


def measured() -> Columns:
    steps = [
        dict.fromkeys(MEASURED_COLUMNS, 0)
        | {"step": step, "seconds": 0.5, "tokens": np.array(tokens, dtype=np.int32)}
        for step, tokens in ((1, [5, 6]), (2, [7, 8]), (3, []))
    ]
    return columns_of([tuple(step.values()) for step in steps], MEASURED_COLUMNS)


@pytest.fixture
def record(make_record: Any) -> RunRecord:
    return make_record([{"request": 0}], [{"step": 1}], decisions=[{"step": 1, "kind": "admit"}])


def write(folder: Path, record: RunRecord, **changed: Any) -> None:
    arguments: dict[str, Any] = {
        "config": {"scheduler": "fcfs", "seed": 0},
        "record": record,
        "summary": {"hit_rate": 0.5},
        "seed": 0,
        "wall_seconds": 1.0,
        "added": added(),
        "measured": measured(),
    }
    write_run(folder, **(arguments | changed))


def test_requests_come_back_as_they_were_asked() -> None:
    plain, rich = added_requests(added())
    for back, asked in ((plain, PLAIN), (rich, RICH)):
        for field in fields(Request):
            was, now = getattr(asked, field.name), getattr(back, field.name)
            if field.name in ("prompt", "output") and was is not None:
                assert (now.dtype, now.tolist()) == (np.int32, was.tolist())
            else:
                assert now == was, field.name


def test_how_tokens_were_sampled_is_not_kept() -> None:
    sampled = replace(PLAIN, sampling=replace(PLAIN.sampling, temperature=0.7))
    (back,) = added_requests(columns_of([added_row(sampled, 0.0, "")], ADDED_COLUMNS))
    assert back.sampling == PLAIN.sampling


def test_equally_long_rows_of_tokens_stay_rows() -> None:
    tokens = measured()["tokens"]
    assert tokens.shape == (3,)
    assert [row.tolist() for row in tokens] == [[5, 6], [7, 8], []]


def test_an_engine_run_is_read_back_as_it_was_written(tmp_path: Path, record: RunRecord) -> None:
    machine = {"hardware": "a card", "model": "tiny-llama", "dtype": "float32"}
    write(tmp_path / "a", record, machine=machine)
    run = load(tmp_path / "a")
    for frame, columns in ((run.added, added()), (run.measured, measured())):
        assert list(frame) == ["run", *columns]
        for name, values in columns.items():
            for now, was in zip(frame[name], values, strict=True):
                assert np.array_equal(now, was), name
    back = {name: run.added[name].to_numpy() for name in ADDED_COLUMNS}
    assert [request.id for request in added_requests(back)] == [0, 4]
    assert run.configs == {"a": {"scheduler": "fcfs", "seed": 0}}
    manifest = json.loads((tmp_path / "a" / "manifest.json").read_text())
    assert {name: manifest[name] for name in machine} == machine


def test_a_simulated_run_has_no_such_rows(tmp_path: Path, record: RunRecord) -> None:
    write(tmp_path / "a", record, added=None, measured=None)
    run = load(tmp_path / "a")
    assert list(run.added) == ["run", *ADDED_COLUMNS]
    assert (len(run.added), len(run.measured)) == (0, 0)


def test_a_failed_run_keeps_what_was_done_and_makes_room(tmp_path: Path, record: RunRecord) -> None:
    folder = tmp_path / "a"
    write(folder, record, failure="step 4: RuntimeError: the device is gone")
    assert not (folder / "COMPLETE").exists()
    assert (folder / "measured.parquet").is_file()
    with pytest.raises(ResultsError, match=r"a: the run failed: step 4: RuntimeError: the device"):
        load(folder)
    with pytest.raises(ResultsError, match="no complete run in it"):
        load(tmp_path)
    write(folder, record)
    assert load(folder).summary.loc[0, "hit_rate"] == 0.5
    assert not (folder / "FAILED").exists()
    assert is_complete(folder, (folder / "COMPLETE").read_text().strip())
