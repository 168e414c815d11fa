"""Small sweeps whose summaries are written by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from testbed.core.records import REQUEST_COLUMNS, STEP_COLUMNS, RunRecord, columns_of
from testbed.metrics.loading import Results, load
from testbed.metrics.results import write_run

MakeSweep = Callable[..., Results]


@pytest.fixture
def make_sweep(tmp_path: Path) -> MakeSweep:
    """make_sweep((options, seed, summary), ...) writes and loads one run a triple.

    A fourth item is the run's record, else it is empty. A run whose scheduler is called `oracle` is
    one with an oracle.
    """

    def make(*runs: tuple[Any, ...]) -> Results:
        empty = RunRecord(columns_of([], REQUEST_COLUMNS), columns_of([], STEP_COLUMNS), None, {})
        for number, (options, seed, summary, *records) in enumerate(runs):
            record = records[0] if records else empty
            write_run(
                tmp_path / "sweep" / str(number),
                config={**options, "seed": seed},
                record=record,
                summary=summary,
                seed=seed,
                wall_seconds=0.0,
                overrides={**options, "seed": seed},
                oracles=["scheduler"] if options.get("scheduler") == "oracle" else [],
            )
        return load(tmp_path / "sweep")

    return make
