"""Latency models fitted to a grid of steps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from experiments.gpu.fit import main, measured_steps
from testbed.core.batch import BatchShape
from testbed.sim.fitted import read_latency


def decode_row(rows: int, context: int) -> dict[str, Any]:
    """A step that takes 2 ms and 10 ns for each token of its context; three times as long op by
    op."""
    shape = BatchShape(decode_rows=rows, decode_context=rows * context, logit_rows=rows)
    seconds = 2e-3 + 1e-8 * rows * context
    return {
        **shape._asdict(),
        "seconds_each": [3 * seconds] * 5,
        "graph_seconds_each": [seconds] * 5,
    }


def test_every_single_step_counts_and_decodes_count_as_captured() -> None:
    prefill = {
        **BatchShape(prefill_rows=1, prefill_tokens=8, prefill_pairs=36)._asdict(),
        "seconds_each": [0.5, 0.7],
    }
    measured = measured_steps([decode_row(2, 100), prefill])
    assert measured["seconds"].tolist() == pytest.approx([2.002e-3] * 5 + [0.5, 0.7])
    assert measured["decode_context"].tolist() == [200] * 5 + [0] * 2
    assert measured["prefill_pairs"].tolist() == [0] * 5 + [36] * 2


def test_the_fit_predicts_what_was_measured(tmp_path: Path) -> None:
    rows = [decode_row(r, c) for r in (1, 8, 64) for c in (128, 1024, 4096, 16384)]
    record = {"card": "a card", "models": {"tiny": {"dtype": "bfloat16", "rows": rows}}}
    (tmp_path / "steps.json").write_text(json.dumps(record))
    assert main([str(tmp_path)]) == 0
    latency, facts = read_latency(tmp_path / "tiny.latency.json")
    shape = BatchShape(decode_rows=32, decode_context=32 * 2000, logit_rows=32)
    assert latency.step_seconds(shape) == pytest.approx(2e-3 + 6.4e-4, rel=0.02)
    assert (facts["model"], facts["hardware"], facts["dtype"]) == ("tiny", "a card", "bfloat16")


def test_too_few_steps_and_no_steps_are_errors(tmp_path: Path, capsys: Any) -> None:
    assert main([str(tmp_path)]) == 1
    record = {"card": "c", "models": {"tiny": {"dtype": "float32", "rows": [decode_row(1, 9)]}}}
    (tmp_path / "steps.json").write_text(json.dumps(record))
    assert main([str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert "no steps.json" in error
    assert "tiny: 5 steps were measured" in error
