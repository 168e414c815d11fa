"""The SimPy world: requests arrive, a router picks a replica, replicas run."""

from __future__ import annotations

import gc
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import simpy

from testbed.core.config import CacheConfig, SchedulerConfig
from testbed.core.cost import CostModel
from testbed.core.decisions import DecisionLog
from testbed.core.policy import EvictionPolicy, PolicyError, RoutingPolicy, SchedulingPolicy
from testbed.core.recorder import Recorder
from testbed.core.records import REQUEST_COLUMNS, Columns, RunRecord, columns_of
from testbed.core.replica_view import ReplicaView
from testbed.core.request import Request, Sequence
from testbed.core.scheduler import Scheduler
from testbed.core.views import RequestView
from testbed.sim.clock import ARRIVALS, Clock
from testbed.sim.latency import LatencyExecutor, LatencyModel
from testbed.sim.replica import Replica


def simulate(
    requests: Iterable[Request],
    *,
    cache: CacheConfig,
    scheduler: SchedulerConfig,
    policy: Callable[[], SchedulingPolicy],
    eviction: Callable[[], EvictionPolicy],
    latency: LatencyModel,
    routing: RoutingPolicy,
    replicas: int = 1,
    cost: CostModel | None = None,
    record_decisions: bool = False,
    progress: Callable[[int], None] | None = None,
    skip_quiet_steps: bool = True,
    check_invariants: bool = False,
) -> RunRecord:
    """Serve the requests, which come in arrival order, and return everything that happened.

    policy, eviction: make one instance for each replica. cost: what policies that weigh costs see;
    by default the latency model's seconds. progress: told after each request that leaves, how many
    have. skip_quiet_steps: let runs of decode steps in which nothing can change
    pass in one event; the records are the same either way. check_invariants: balance the cache's
    books after every step, or run of skipped ones (slow).

    Raises ValueError for no requests, no replicas, or arrivals out of order; PolicyError for a
    policy that breaks its contract.
    """
    if replicas < 1:
        raise ValueError(f"replicas={replicas}: at least 1 is needed")
    clock = Clock()
    served = 0

    def on_left(sequence: Sequence) -> None:
        nonlocal served
        served += 1
        if progress is not None:
            progress(served)

    logs = [DecisionLog(index) if record_decisions else None for index in range(replicas)]
    evictions = [eviction() for _ in logs]
    if any(one.oracle for one in evictions):
        requests = list(requests)
        future = [RequestView(request) for request in requests]
        for one in evictions:
            one.on_future(future)
    cost = cost or CostModel(latency.step_seconds)
    schedulers = [
        Scheduler(cache, scheduler, policy(), one, log, cost)
        for one, log in zip(evictions, logs, strict=True)
    ]
    recorders = [Recorder(index, one) for index, one in enumerate(schedulers)]
    executor = LatencyExecutor(latency)
    ahead = latency if skip_quiet_steps else None
    fleet = tuple(
        Replica(clock, index, one, executor, ahead, recorder, on_left, check_invariants)
        for index, (one, recorder) in enumerate(zip(schedulers, recorders, strict=True))
    )
    sights = tuple(ReplicaView(replica) for replica in fleet)
    arrived = 0

    def arrivals() -> Generator[simpy.Event, Any, None]:
        nonlocal arrived
        for request in requests:
            if request.arrival > clock.now:
                yield clock.at(request.arrival, ARRIVALS)
            elif request.arrival < clock.now:
                raise ValueError(
                    f"request {request.id}: arrival {request.arrival} is before the one ahead of it"
                )
            chosen = routing.choose(RequestView(request), sights, clock.now)
            if type(chosen) is not int or not 0 <= chosen < replicas:
                name = type(routing).__name__
                raise PolicyError(f"{name} chose replica {chosen!r}; 0 to {replicas - 1} exist")
            arrived += 1
            fleet[chosen].submit(request)

    clock.process(arrivals())
    with _rare_collections():
        clock.run()
        if not arrived:
            raise ValueError("the workload holds no requests")
        if served != arrived:
            raise RuntimeError(f"{arrived} requests arrived, {served} left")
        return _record(recorders, logs, cache)


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Let Python look for cyclic garbage less often: the world makes many objects and no cycles."""
    thresholds = gc.get_threshold()
    gc.set_threshold(50_000, 20, 100)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)


def _record(
    recorders: list[Recorder], logs: list[DecisionLog | None], cache: CacheConfig
) -> RunRecord:
    steps = [recorder.steps() for recorder in recorders]
    decisions = [log.columns() for log in logs if log is not None]
    return RunRecord(
        requests=columns_of([r for rec in recorders for r in rec.requests()], REQUEST_COLUMNS),
        steps=_joined(steps),
        decisions=_joined(decisions) if decisions else None,
        counters={
            "num_pages": cache.num_pages,
            "page_size": cache.page_size,
            "replicas": len(recorders),
        },
    )


def _joined(parts: list[Columns]) -> Columns:
    if len(parts) == 1:
        return parts[0]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
