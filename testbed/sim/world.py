"""The SimPy world: requests arrive, a router picks a replica, replicas run."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial

from testbed.core.config import CacheConfig, SchedulerConfig
from testbed.core.cost import CostModel
from testbed.core.decisions import DecisionLog
from testbed.core.policy import EvictionPolicy, RoutingPolicy, SchedulingPolicy
from testbed.core.recorder import Recorder
from testbed.core.records import REQUEST_COLUMNS, RunRecord, columns_of, joined
from testbed.core.request import Request, Sequence, State
from testbed.core.scheduler import Scheduler
from testbed.core.source import OpenLoop, RequestSource
from testbed.core.views import RequestView
from testbed.sim.clock import Clock
from testbed.sim.delivery import Delivery
from testbed.sim.latency import LatencyExecutor, LatencyModel
from testbed.sim.replica import Replica
from testbed.sim.sight import Sight


def simulate(
    requests: Iterable[Request] | RequestSource,
    *,
    cache: CacheConfig,
    scheduler: SchedulerConfig,
    policy: Callable[[], SchedulingPolicy],
    eviction: Callable[[], EvictionPolicy],
    latency: LatencyModel,
    routing: RoutingPolicy,
    replicas: int = 1,
    staleness: float = 0.0,
    cost: CostModel | None = None,
    record_decisions: bool = False,
    progress: Callable[[int], None] | None = None,
    skip_quiet_steps: bool = True,
    check_invariants: bool = False,
) -> RunRecord:
    """Serve the requests and return everything that happened.

    requests: in arrival order, or a source that may wait for answers, as LM programs do. policy,
    eviction: make one instance for each replica. staleness: seconds between two looks of the router
    at loads and caches, which happen at multiples of it; 0 shows everything live. cost: what
    policies that weigh costs see; by default the latency model's seconds. progress: told after each
    request that leaves how many are over, or how many programs. skip_quiet_steps: let runs of
    decode steps in which nothing can change pass in one event; the records are the same either way,
    but that replicas whose steps end at one instant may be heard in another order by a source that
    reacts.
    check_invariants: balance the cache's books after every step, or run of skipped ones (slow).

    Raises ValueError for no requests, no replicas, arrivals out of order, a source that reacts to
    outputs without saying what they are, or programs that never end; PolicyError for a policy that
    breaks its contract.
    """
    if replicas < 1:
        raise ValueError(f"replicas={replicas}: at least 1 is needed")
    clock = Clock()

    def on_first_token(replica: int, sequence: Sequence) -> None:
        routing.on_first_token(RequestView(sequence.request), replica, clock.now)

    def on_left(replica: int, sequence: Sequence) -> None:
        finished = sequence.state is State.FINISHED
        if hears_ends:
            tokens = sequence.num_generated_tokens
            routing.on_finish(RequestView(sequence.request), replica, tokens, clock.now)
        delivery.left(sequence.request.id, sequence.output_tokens() if finished else None)
        if progress is not None:
            progress(source.ended)

    logs = [DecisionLog(index) if record_decisions else None for index in range(replicas)]
    evictions = [eviction() for _ in logs]
    if any(one.oracle for one in evictions):
        if isinstance(requests, RequestSource):
            raise ValueError(
                f"eviction={type(evictions[0]).__name__}: which requests come is not known ahead "
                "where they depend on what leaves"
            )
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
    hears_ends = type(routing).on_finish is not RoutingPolicy.on_finish
    hears_starts = type(routing).on_first_token is not RoutingPolicy.on_first_token
    fleet = tuple(
        Replica(
            clock,
            index,
            one,
            executor,
            ahead,
            recorder,
            partial(on_left, index),
            check_invariants,
            partial(on_first_token, index) if hears_starts else None,
        )
        for index, (one, recorder) in enumerate(zip(schedulers, recorders, strict=True))
    )
    sight = Sight(routing, fleet, [one.cache for one in schedulers], cost, staleness)
    source = requests if isinstance(requests, RequestSource) else OpenLoop(requests)
    delivery = Delivery(clock, source, sight, fleet)
    with _rare_collections():
        clock.run()
        arrived = delivery.num_arrived
        if not arrived:
            raise ValueError("the workload holds no requests")
        served = sum(len(recorder.requests()) for recorder in recorders)
        if served != arrived:
            raise RuntimeError(f"{arrived} requests arrived, {served} left")
        if source.unfinished is not None:
            raise ValueError(source.unfinished)
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
        steps=joined(steps),
        decisions=joined(decisions) if decisions else None,
        counters={
            "num_pages": cache.num_pages,
            "page_size": cache.page_size,
            "replicas": len(recorders),
        },
    )
