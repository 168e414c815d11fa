"""A record comes back from its folder as it went in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from testbed.metrics.results import ResultsError, write_run
from testbed.metrics.stored import read_record
from tests.metrics.conftest import build_random_record


def test_a_record_comes_back_as_it_was(tmp_path: Path) -> None:
    record = build_random_record(np.random.default_rng(0), 12, 2)
    write_run(tmp_path / "run", config={}, record=record, summary={}, seed=0, wall_seconds=0.0)
    again = read_record(tmp_path / "run")
    assert again.counters == record.counters and again.decisions is None
    for table in ("requests", "steps"):
        before, after = getattr(record, table), getattr(again, table)
        assert before.keys() == after.keys()
        for name, values in before.items():
            assert values.tolist() == after[name].tolist(), name
            assert values.dtype == after[name].dtype, name


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(ResultsError, match=r"manifest\.json is missing"):
        read_record(tmp_path)
    record = build_random_record(np.random.default_rng(0), 3, 1)
    write_run(
        tmp_path / "run",
        config={},
        record=record,
        summary={},
        seed=0,
        wall_seconds=0.0,
        write_steps=False,
    )
    with pytest.raises(ResultsError, match=r"steps\.parquet is missing"):
        read_record(tmp_path / "run")
