"""The columns that the timeline draws."""

from __future__ import annotations

import pandas as pd
import pytest

from testbed.reports.page import timeline as module
from testbed.reports.page.timeline import timeline

STEPS = pd.DataFrame(
    {
        "replica": 0,
        "step": [1, 2, 3],
        "start_s": [0.5, 0.75, 2.0],
        "end_s": [0.75, 1.0, 2.5],
        "decode_rows": [0, 2, 3],
        "prefill_rows": [2, 0, 1],
        "prefill_tokens": [20, 0, 7],
        "waiting": [4, 3, 0],
        "running": [2, 2, 3],
        "free_pages": [50, 40, 10],
        "evictable_pages": [10, 20, 30],
        "locked_pages": [30, 30, 50],
        "evicted_pages": [0, 0, 5],
    }
)
REQUESTS = pd.DataFrame(
    {
        "replica": 0,
        "admitted_step": [1, 1, 3, -1],
        "cached_tokens": [16, 4, 8, 0],
    }
)
COUNTERS = {"num_pages": 100, "page_size": 4}


def test_every_step_with_what_its_requests_found() -> None:
    data = timeline(REQUESTS, STEPS, COUNTERS)
    (replica,) = data["replicas"]
    assert replica == {
        "replica": 0,
        "merged": 1,
        "idle_us": [500_000, 0, 1_000_000],
        "step_us": [250_000, 250_000, 500_000],
        "step": [1, 1, 1],
        "decode_tokens": [0, 2, 3],
        "cached_tokens": [20, 0, 8],
        # 100 - 50 - 40, 100 - 40 - 50, 100 - 10 - 80.
        "own_pages": [10, 10, 10],
        "prefill_rows": [2, 0, 1],
        "prefill_tokens": [20, 0, 7],
        "evicted_pages": [0, 0, 5],
        "waiting": [4, 3, 0],
        "running": [2, 2, 3],
        "locked_pages": [30, 30, 50],
        "evictable_pages": [10, 20, 30],
    }


def test_too_many_steps_are_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_STEPS", 2)
    (replica,) = timeline(REQUESTS, STEPS, COUNTERS)["replicas"]
    assert replica["merged"] == 2
    assert replica["idle_us"] == [500_000, 1_000_000] and replica["step_us"] == [500_000, 500_000]
    assert replica["step"] == [1, 2]
    assert replica["cached_tokens"] == [20, 8] and replica["decode_tokens"] == [2, 3]
    assert replica["waiting"] == [4, 0] and replica["evictable_pages"] == [20, 30]


def test_replicas_are_apart() -> None:
    steps = STEPS.assign(replica=[0, 1, 1], step=[1, 1, 2])
    requests = REQUESTS.assign(replica=[0, 1, 1, 1], admitted_step=[1, 1, 2, -1])
    first, second = timeline(requests, steps, COUNTERS)["replicas"]
    assert (first["cached_tokens"], second["cached_tokens"]) == ([16], [4, 8])
    assert timeline(REQUESTS, STEPS.head(0), COUNTERS)["replicas"] == []
