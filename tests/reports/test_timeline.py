"""The timeline of one replica, and the same as a trace."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.collections import PolyCollection

from testbed.core.records import RunRecord
from testbed.reports.chrome_trace import chrome_trace
from testbed.reports.timeline import plot_timeline, timeline_figure, timeline_table
from tests.metrics.conftest import build_record


@pytest.fixture
def record() -> RunRecord:
    """Two requests; the second waits for a step, and finds 4 tokens. Pages hold 2 tokens."""
    request: dict[str, Any] = {"prompt_tokens": 8, "output_tokens": 2, "client": "a"}
    return build_record(
        [
            {
                **request,
                "request": 0,
                "arrival_s": 0.0,
                "admitted_s": 0.0,
                "admitted_step": 1,
                "first_token_s": 1.0,
                "finish_s": 3.0,
            },
            {
                **request,
                "request": 1,
                "arrival_s": 0.5,
                "admitted_s": 1.0,
                "admitted_step": 2,
                "first_token_s": 3.0,
                "finish_s": 4.0,
                "cached_tokens": 4,
            },
            {**request, "request": 2, "status": "refused", "admitted_step": -1},
        ],
        [
            {"step": 1, "start_s": 0.0, "end_s": 1.0, "prefill_rows": 1, "prefill_tokens": 8}
            | {"free_pages": 6, "running": 1},
            {"step": 2, "start_s": 1.0, "end_s": 3.0, "prefill_rows": 1, "prefill_tokens": 4}
            | {"decode_rows": 1, "running": 2, "evicted_pages": 3, "locked_pages": 6},
            {"step": 3, "start_s": 3.0, "end_s": 4.0, "decode_rows": 1, "evictable_pages": 10},
        ],
    )


def test_a_step_has_what_it_computed_found_and_evicted_in_tokens(record: RunRecord) -> None:
    table = timeline_table(record)
    assert table["cached_tokens"].tolist() == [0, 4, 0]
    assert table["evicted_tokens"].tolist() == [0, 6, 0]
    assert table["free_tokens"].tolist() == [12, 0, 0]
    with pytest.raises(ValueError, match="replica=3: one that made steps is needed: 0"):
        timeline_table(record, replica=3)


def test_bars_are_as_long_as_their_steps(record: RunRecord) -> None:
    prompts = timeline_figure(record, timeline_table(record)).axes[1]
    bars = [c for c in prompts.collections if isinstance(c, PolyCollection)]
    corners = [[p.vertices[:4].tolist() for p in bar.get_paths()] for bar in bars]
    cached, prefill, evicted = corners
    assert cached == [[[1, 0], [1, 4], [3, 4], [3, 0]]]
    # What was computed stands on what was found.
    assert prefill == [[[0, 0], [0, 8], [1, 8], [1, 0]], [[1, 4], [1, 8], [3, 8], [3, 4]]]
    assert evicted == [[[1, -6], [1, 0], [3, 0], [3, -6]]]


def test_the_pool_is_filled_by_its_parts(record: RunRecord) -> None:
    pool = timeline_figure(record, timeline_table(record)).axes[3]
    tops = np.zeros(4)
    for bars in pool.collections:
        for path in bars.get_paths():
            start, _ = path.vertices[0]
            tops[int(start)] = max(tops[int(start)], path.vertices[1][1])
    assert tops.tolist() == [20, 20, 0, 20]


def test_the_trace_has_steps_and_nested_phases_in_microseconds(record: RunRecord) -> None:
    events = json.loads(chrome_trace(record))["traceEvents"]
    steps = [event for event in events if event["ph"] == "X"]
    assert [(e["name"], e["ts"], e["dur"]) for e in steps] == [
        ("prefill", 0, 1e6),
        ("prefill + decode", 1e6, 2e6),
        ("decode", 3e6, 1e6),
    ]
    assert steps[1]["args"]["evicted tokens"] == 6
    spans = [event for event in events if event["ph"] in "be"]
    second = [(e["ph"], e["name"], e["ts"]) for e in spans if e["id"] == 1]
    assert second == [
        ("b", "request 1", 5e5),
        ("b", "waiting", 5e5),
        ("e", "waiting", 1e6),
        ("b", "prefill", 1e6),
        ("e", "prefill", 3e6),
        ("b", "decode", 3e6),
        ("e", "decode", 4e6),
        ("e", "request 1", 4e6),
    ]
    assert not any(event["id"] == 2 for event in spans)


def test_equal_records_give_equal_bytes(record: RunRecord, tmp_path: Path) -> None:
    written = plot_timeline(record, tmp_path / "timeline")
    assert [path.name for path in written] == [
        "timeline.pdf",
        "timeline.png",
        "timeline.csv",
        "timeline.trace.json",
    ]
    before = [path.read_bytes() for path in written]
    assert [path.read_bytes() for path in plot_timeline(record, tmp_path / "timeline")] == before
