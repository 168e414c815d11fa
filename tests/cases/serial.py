"""Serving through the real Scheduler: one request at a time, or one full batch at a time."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Any, NamedTuple

from testbed.core.batch import StepResult
from testbed.core.config import CacheConfig, SchedulerConfig
from testbed.core.request import Request, State
from testbed.core.scheduler import Scheduler
from testbed.policies import EvictionPolicy, SchedulingPolicy
from testbed.policies.eviction.recency import Lru
from testbed.policies.scheduling.arrival import Fcfs

UNLIMITED = 2**31 - 1
"""Pages of a pool that never evicts."""

SERIAL = SchedulerConfig(
    max_running=1, chunk_size=0, max_prefill_tokens=UNLIMITED, min_computed_tokens=0
)
"""One request at a time, its prompt in one step; a fully cached prompt computes nothing."""


class Served(NamedTuple):
    """order, hits: request ids and hit tokens in served order."""

    order: list[int]
    hits: list[int]
    evicted_tokens: int


def build_scheduler(
    capacity: int,
    policy: SchedulingPolicy | None = None,
    eviction: EvictionPolicy | None = None,
    config: SchedulerConfig = SERIAL,
    **cache: Any,
) -> Scheduler:
    """A scheduler over `capacity` pages, of one token unless `cache` says otherwise; FCFS, LRU."""
    return Scheduler(
        CacheConfig(capacity, **{"page_size": 1, **cache}),
        config,
        policy or Fcfs(),
        eviction or Lru(),
    )


def serve_waiting(scheduler: Scheduler, requests: Iterable[Request]) -> Served:
    """Queue all the requests, then let the policy choose until none is left."""
    for request in requests:
        sequence = scheduler.add(request, 0.0)
        if sequence.state is State.REFUSED:
            raise ValueError(f"prompt {request.id} can never be served: {sequence.refusal}")
    order: list[int] = []
    hits: list[int] = []
    evicted = 0
    while (batch := scheduler.schedule(0.0)) is not None:
        # Prompts are never split, so each prefill row is an admission.
        order += [row.sequence.request.id for row in batch.prefills]
        hits += [row.sequence.num_cached_tokens for row in batch.prefills]
        evicted += sum(map(len, scheduler.evicted))
        scheduler.commit(batch, StepResult(0.0), 0.0)
    return Served(order, hits, evicted * scheduler.cache.page_size)


def serve_in_order(scheduler: Scheduler, requests: Iterable[Request]) -> Served:
    """Queue each request when the one before it has left."""
    parts = [serve_waiting(scheduler, [request]) for request in requests]
    return Served(
        list(chain.from_iterable(part.order for part in parts)),
        list(chain.from_iterable(part.hits for part in parts)),
        sum(part.evicted_tokens for part in parts),
    )
