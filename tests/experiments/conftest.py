"""A data folder of six requests and their statistics, and the command line in this process."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from experiments import run
from testbed.workloads import MooncakeTrace
from testbed.workloads.fitted_statistics import save_statistics
from testbed.workloads.fitting import fit

MOONCAKE_ROWS = [
    {"timestamp": 1000 * i, "input_length": 700, "output_length": 5, "hash_ids": [0, 1 + i // 2]}
    for i in range(6)
]


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "data"
    trace = folder / "mooncake" / "conversation_trace.jsonl"
    trace.parent.mkdir(parents=True)
    trace.write_text("".join(json.dumps(row) + "\n" for row in MOONCAKE_ROWS))
    save_statistics(fit(MooncakeTrace(trace), 512), folder / "fitted.json")
    monkeypatch.setenv("TESTBED_DATA", str(folder))
    return folder


class Finished(NamedTuple):
    status: int
    out: str
    err: str


Command = Callable[..., Finished]


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Command:
    """`python -m experiments.run ARGUMENTS`, with small defaults, writing to tmp_path/out."""
    monkeypatch.delenv(run.FULL_ERROR, raising=False)
    # What one test names by its path is not sent to the workers of another.
    monkeypatch.setattr(run.choice_store(), "named", set())

    def call(*arguments: str, small: bool = True) -> Finished:
        defaults = ["workload.num_requests=12"] if small else []
        output = f"output={tmp_path / 'out'}"
        monkeypatch.setattr(sys, "argv", ["run", *arguments, *defaults, output])
        status = run.main()
        return Finished(status, *capfd.readouterr())

    return call
