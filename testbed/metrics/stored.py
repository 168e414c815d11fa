"""A run folder back as the record that was written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pyarrow.parquet as pq

from testbed.core.records import (
    DECISION_COLUMNS,
    REQUEST_COLUMNS,
    STEP_COLUMNS,
    Column,
    Columns,
    RunRecord,
)
from testbed.metrics.results import ResultsError


def read_record(folder: str | Path) -> RunRecord:
    """The record of a complete run; ResultsError where a table is missing or damaged.

    Runs are written with steps unless `record.steps` is off.
    """
    folder = Path(folder)
    try:
        counters = json.loads((folder / "manifest.json").read_text())["counters"]
    except (OSError, ValueError, KeyError) as error:
        raise ResultsError(f"{folder}/manifest.json is missing or damaged: {error}") from error
    decisions = folder / "decisions.parquet"
    return RunRecord(
        requests=_columns(folder / "requests.parquet", REQUEST_COLUMNS),
        steps=_columns(folder / "steps.parquet", STEP_COLUMNS),
        decisions=_columns(decisions, DECISION_COLUMNS) if decisions.exists() else None,
        counters=counters,
    )


def _columns(path: Path, schema: Mapping[str, Column]) -> Columns:
    try:
        table = pq.read_table(path, columns=list(schema))
    except (OSError, ValueError) as error:
        raise ResultsError(f"{path} is missing or damaged: {error}") from error
    return {name: table[name].to_numpy() for name in schema}
