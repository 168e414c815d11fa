"""A run as a trace that Perfetto and chrome://tracing open."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from testbed.core.records import RunRecord

STEPS, REQUESTS = 1, 2
"""Threads of a replica's process."""
PHASES = ("waiting", "prefill", "decode")
Event = dict[str, Any]


def chrome_trace(record: RunRecord) -> str:
    """The run in Chrome's JSON trace format; times are microseconds.

    A process for each replica: its steps as slices, its requests as asynchronous spans with their
    phases inside, queue and pool as counters.
    """
    events = [
        *_names(record.counters["replicas"]),
        *_steps(record),
        *_requests(record),
    ]
    # An event a line, so that equal runs can be compared line by line.
    lines = ",\n".join(json.dumps(event, separators=(",", ":")) for event in events)
    return f'{{"displayTimeUnit":"ms","traceEvents":[\n{lines}\n]}}\n'


def _names(replicas: int) -> Iterator[Event]:
    for replica in range(replicas):
        common = {"ph": "M", "pid": replica}
        yield {**common, "name": "process_name", "args": {"name": f"replica {replica}"}}
        yield {**common, "tid": STEPS, "name": "thread_name", "args": {"name": "steps"}}


def _steps(record: RunRecord) -> Iterator[Event]:
    size = record.counters["page_size"]
    for step in _rows(record.steps):
        replica, start = step["replica"], _micro(step["start_s"])
        kinds = [kind for kind in ("prefill", "decode") if step[f"{kind}_rows"]]
        yield {
            "ph": "X",
            "pid": replica,
            "tid": STEPS,
            "name": " + ".join(kinds),
            "ts": start,
            "dur": _micro(step["end_s"]) - start,
            "args": {
                "step": step["step"],
                "prefill tokens": step["prefill_tokens"],
                "prefill rows": step["prefill_rows"],
                "decode rows": step["decode_rows"],
                "evicted tokens": step["evicted_pages"] * size,
            },
        }
        counters = {
            "requests": {"waiting": step["waiting"], "running": step["running"]},
            "pool tokens": {
                "cached, in use": step["locked_pages"] * size,
                "cached, evictable": step["evictable_pages"] * size,
                "free": step["free_pages"] * size,
            },
        }
        for name, values in counters.items():
            yield {"ph": "C", "pid": replica, "name": name, "ts": start, "args": values}


def _requests(record: RunRecord) -> Iterator[Event]:
    for request in _rows(record.requests):
        if request["admitted_step"] < 0:
            continue
        named = ("arrival_s", "admitted_s", "first_token_s", "finish_s")
        moments = [_micro(request[name]) for name in named]
        common = {
            "pid": request["replica"],
            "tid": REQUESTS,
            "cat": "request",
            "id": request["request"],
        }
        facts = ("client", "program", "prompt_tokens", "cached_tokens", "output_tokens")
        args = {name: request[name] for name in facts}
        name = f"request {request['request']}"
        yield {**common, "ph": "b", "name": name, "ts": moments[0], "args": args}
        for phase, start, end in zip(PHASES, moments[:-1], moments[1:], strict=True):
            yield {**common, "ph": "b", "name": phase, "ts": start}
            yield {**common, "ph": "e", "name": phase, "ts": end}
        yield {**common, "ph": "e", "name": name, "ts": moments[-1]}


def _rows(columns: dict[str, np.ndarray[Any, Any]]) -> Iterator[dict[str, Any]]:
    """The table's rows as plain Python values."""
    for values in zip(*(column.tolist() for column in columns.values()), strict=True):
        yield dict(zip(columns, values, strict=True))


def _micro(seconds: float) -> float:
    return round(1e6 * seconds, 3)
