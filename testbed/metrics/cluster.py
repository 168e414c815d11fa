"""What spreading requests over replicas costs: prefixes computed twice, and uneven load."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from testbed.core.records import RunRecord
from testbed.core.request import Request
from testbed.metrics.prompt_paths import prompt_paths


def duplicated_prefix_tokens(record: RunRecord, requests: Iterable[Request]) -> int:
    """Prompt tokens that several replicas each had to compute at least once.

    Sum over replicas of the distinct prefix tokens of the prompts admitted there, less those of all
    admitted prompts together; whole pages only. It is what the routing alone loses against one
    cache that never evicts. Memory: 4 bytes for each distinct prefix token. Raises ValueError if
    an admitted request is missing from `requests`.
    """
    admitted = record.requests["admitted_step"] >= 0
    ids = record.requests["request"][admitted].tolist()
    replica_of = dict(zip(ids, record.requests["replica"][admitted].tolist(), strict=True))
    served: list[list[Request]] = [[] for _ in range(record.counters["replicas"])]
    found = 0
    for request in requests:
        replica = replica_of.get(request.id)
        if replica is not None:
            served[replica].append(request)
            found += 1
    if found != len(ids):
        raise ValueError(f"requests: {len(ids) - found} that were served are not among them")
    page_size = record.counters["page_size"]
    apart = sum(_distinct_tokens(some, page_size) for some in served)
    return apart - _distinct_tokens((r for some in served for r in some), page_size)


def load_imbalance(record: RunRecord) -> float:
    """The busiest replica's seconds in steps over the mean of all replicas; 1 is even.

    NaN if nothing ran.
    """
    seconds = record.steps["end_s"] - record.steps["start_s"]
    busy = np.bincount(record.steps["replica"], seconds, minlength=record.counters["replicas"])
    return float(busy.max() / busy.mean()) if busy.any() else float("nan")


def _distinct_tokens(requests: Iterable[Request], page_size: int) -> int:
    return page_size * sum(prompt_paths(requests, page_size, min_computed_tokens=0).pages)
