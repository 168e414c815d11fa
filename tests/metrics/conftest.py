"""Records written by hand, and small random but consistent ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from testbed.core.records import (
    DECISION_COLUMNS,
    REQUEST_COLUMNS,
    STEP_COLUMNS,
    Column,
    RunRecord,
    columns_of,
)

Row = dict[str, Any]
_REQUEST_DEFAULTS: Row = {"client": "default", "weight": 1.0, "status": "finished"}


def build_record(
    requests: list[Row],
    steps: list[Row],
    decisions: list[Row] | None = None,
    num_pages: int = 10,
    page_size: int = 2,
) -> RunRecord:
    """A record with the given values; what a row leaves out is zero or empty or the default."""
    return RunRecord(
        requests=columns_of(_rows(requests, REQUEST_COLUMNS), REQUEST_COLUMNS),
        steps=columns_of(_rows(steps, STEP_COLUMNS), STEP_COLUMNS),
        decisions=(
            None
            if decisions is None
            else columns_of(_rows(decisions, DECISION_COLUMNS), DECISION_COLUMNS)
        ),
        counters={
            "num_pages": num_pages,
            "page_size": page_size,
            "bytes_per_page": 0,
            "replicas": 1,
            "skipped_lines": 0,
        },
    )


def _rows(rows: list[Row], schema: dict[str, Column]) -> list[tuple[Any, ...]]:
    for row in rows:
        assert row.keys() <= schema.keys(), row.keys() - schema.keys()
    zero = {name: "" if column.dtype == "str" else 0 for name, column in schema.items()}
    defaults = {k: v for k, v in _REQUEST_DEFAULTS.items() if k in schema}
    return [tuple((zero | defaults | row)[name] for name in schema) for row in rows]


def build_random_record(
    rng: np.random.Generator, num_requests: int, clients: int, slots: int = 3, replica: int = 0
) -> RunRecord:
    """A toy server: one prefill step a request, decodes mixed in or not, sometimes a preemption."""
    arrivals = np.sort(rng.integers(0, 4 * num_requests, num_requests)) / 2.0
    waiting: list[Row] = []
    running: list[Row] = []
    done: list[Row] = []
    steps: list[Row] = []
    pending = [
        {
            "request": i,
            "replica": replica,
            "client": f"c{rng.integers(clients)}",
            "arrival_s": float(arrivals[i]),
            "prompt_tokens": int(rng.integers(1, 20)),
            "left": int(rng.integers(1, 9)),
            "spans": [],
            "admitted_step": -1,
            "first_token_s": -1.0,
        }
        for i in range(num_requests)
    ]
    for row in pending:
        row["weight"] = 1.0 + int(row["client"][1:]) % 2
        row["output_tokens"] = row["left"]
        row["cached_tokens"] = int(rng.integers(0, row["prompt_tokens"]))
    now, step = 0.0, 0
    while len(done) < num_requests:
        if not running and not waiting:
            now = max(now, pending[0]["arrival_s"])
        while pending and pending[0]["arrival_s"] <= now:
            waiting.append(pending.pop(0))
        step += 1
        admitted = [
            waiting.pop(int(rng.integers(len(waiting))))
            for _ in range(min(len(waiting), slots - len(running), int(rng.integers(1, 3))))
        ]
        decoding = running if not admitted or rng.random() < 0.5 else []
        start, now = now, now + float(rng.integers(1, 5)) / 2
        for row in admitted:
            if row["admitted_step"] < 0:
                row |= {"admitted_step": step, "admitted_s": start}
            row["spans"].append([step, step])
            if row["first_token_s"] < 0:
                row["first_token_s"] = now
        for row in decoding:
            row["spans"][-1][1] = step
        for row in [*admitted, *decoding]:
            row["left"] -= 1
            if row["left"] == 0:
                row["finish_s"] = now
                done.append(row)
        steps.append(
            {
                "replica": replica,
                "step": step,
                "start_s": start,
                "end_s": now,
                "decode_rows": len(decoding),
                "prefill_rows": len(admitted),
            }
        )
        running = [row for row in [*running, *admitted] if row["left"]]
        if running and rng.random() < 0.1:
            waiting.insert(0, running.pop())
    for row in done:
        row["decode_spans"] = " ".join(f"{a}-{b}" for a, b in row["spans"])
        del row["spans"], row["left"]
    return build_record(done, steps)


@pytest.fixture
def make_record() -> Callable[..., RunRecord]:
    return build_record


@pytest.fixture(scope="session")
def random_record() -> Callable[..., RunRecord]:
    return build_random_record
