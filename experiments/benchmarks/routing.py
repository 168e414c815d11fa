"""How long a routing decision takes on a large fleet, and an eviction in a large tree."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice

import numpy as np

from experiments.benchmarks.bars import Bar, Benchmark, Reached
from testbed.core.batch import StepResult
from testbed.core.config import CacheConfig, SchedulerConfig
from testbed.core.cost import CostModel
from testbed.core.policy import EvictionPolicy, RoutingPolicy
from testbed.core.prefix_index import PrefixIndex
from testbed.core.recorder import Recorder
from testbed.core.replica_view import ReplicaView
from testbed.core.request import Request
from testbed.core.scheduler import Scheduler
from testbed.core.views import RequestView
from testbed.policies import registry
from testbed.policies.eviction.recency import Lru
from testbed.policies.scheduling.arrival import Fcfs
from testbed.sim.clock import Clock
from testbed.sim.latency import FixedLatency, LatencyExecutor
from testbed.sim.replica import Replica
from testbed.sim.sight import Sight
from testbed.workloads import MooncakeTrace

TRACE = "mooncake/conversation_trace.jsonl"
REPLICAS = 64
NODES = 100_000
PAGE_SIZE = 16
BLOCK = 512
WARM = 4_000
PROBES = 400
SMALL, LARGE = 1_000, 100_000
EVICTIONS = 500
LIMIT_US = 200.0
DECISION = Bar(f"slowest router's median decision / {LIMIT_US:g} microseconds", "<", 1.0)
GROWTH = Bar(f"largest growth of an eviction's cost, {SMALL:,} to {LARGE:,} nodes", "<", 5.0)


class AllRouters(RoutingPolicy):
    """Deals requests in turn, and lets every router decide on each of them, so that each has seen
    the same traffic; when it is measured, `measured` alone decides."""

    def __init__(self) -> None:
        self.routers = {name: registry.routing(name) for name in registry.BUILT_IN["routing"]}
        self.measured: RoutingPolicy | None = None
        self._next = 0

    def on_start(self, replicas: tuple[ReplicaView, ...], cost: CostModel) -> None:
        """Start them all."""
        for router in self.routers.values():
            router.on_start(replicas, cost)

    def choose(self, request: RequestView, replicas: tuple[ReplicaView, ...], now: float) -> int:
        """The measured router's choice; while nobody is measured, the next in turn."""
        if self.measured is not None:
            return self.measured.choose(request, replicas, now)
        for router in self.routers.values():
            chosen = router.choose(request, replicas, now)
            router.on_first_token(request, chosen, now)
            router.on_finish(request, chosen, 1, now)
        self._next += 1
        return (self._next - 1) % len(replicas)


def warm_traffic() -> Iterator[Request]:
    """The first WARM requests of the trace, then new branches at their block boundaries, without
    end; one token to generate each."""
    prompts = []
    for request in islice(MooncakeTrace(TRACE), WARM):
        prompts.append(request.prompt)
        yield one_token(request.id, request)
    random = np.random.default_rng(0)
    number = len(prompts)
    while True:
        stem = prompts[random.integers(len(prompts))]
        stem = stem[: BLOCK * random.integers(1, 5)]
        leaf = np.arange(PAGE_SIZE, dtype=np.int32) - PAGE_SIZE * (number + 1)
        yield one_token(number, Request(number, np.concatenate((stem, leaf)), leaf[:1]))
        number += 1


def one_token(number: int, request: Request) -> Request:
    """The request with an output of one token."""
    assert request.output is not None
    return replace(request, id=number, output=request.output[:1], max_new_tokens=1, arrival=0.0)


class Fleet:
    """Replicas whose caches hold NODES distinct nodes together, behind the router's sight."""

    def __init__(self, routers: AllRouters, nodes: int) -> None:
        cache = CacheConfig(num_pages=2**22, page_size=PAGE_SIZE)
        schedulers = [
            Scheduler(cache, SchedulerConfig(chunk_size=0, max_prefill_tokens=2**20), Fcfs(), Lru())
            for _ in range(REPLICAS)
        ]
        clock, executor = Clock(), LatencyExecutor(FixedLatency(0.0))
        self.replicas = tuple(
            Replica(clock, index, one, executor, None, Recorder(index, one), _ignore, False)
            for index, one in enumerate(schedulers)
        )
        caches = [one.cache for one in schedulers]
        self.sight = Sight(routers, self.replicas, caches, CostModel(), staleness=0.0)
        index = self.sight.index
        assert isinstance(index, PrefixIndex)
        for request in warm_traffic():
            if index.num_nodes >= nodes:
                break
            scheduler = schedulers[self.sight.choose(request, 0.0)]
            scheduler.add(request, 0.0)
            batch = scheduler.schedule(0.0)
            assert batch is not None
            scheduler.commit(batch, StepResult(0.0), 0.0)
        self.num_nodes = index.num_nodes
        # Queues of 0 to 7, so that loads differ.
        waiting = islice(MooncakeTrace(TRACE), 7 * REPLICAS)
        for number, request in enumerate(waiting):
            if number // REPLICAS < number % 8:
                schedulers[number % REPLICAS].add(request, 0.0)


def _ignore(sequence: object) -> None:
    """Nobody leaves."""


def decision_times() -> dict[str, list[float]]:
    """Microseconds of each decision on PROBES requests of the trace that follow the warm ones."""
    routers = AllRouters()
    fleet = Fleet(routers, NODES)
    print(f"{REPLICAS} replicas, {fleet.num_nodes:,} distinct cached nodes")
    times: dict[str, list[float]] = {name: [] for name in routers.routers}
    for request in islice(MooncakeTrace(TRACE), WARM, WARM + PROBES):
        for name, router in routers.routers.items():
            routers.measured = router
            start = time.perf_counter()
            fleet.sight.choose(request, 0.0)
            times[name].append(1e6 * (time.perf_counter() - start))
    return times


def eviction_microseconds(policy: Callable[[], EvictionPolicy], nodes: int) -> float:
    """The median cost of evicting one page where there are so many leaves of one page."""
    config = SchedulerConfig(chunk_size=0, max_prefill_tokens=2**20)
    prompts = np.arange(nodes * PAGE_SIZE, dtype=np.int32).reshape(nodes, PAGE_SIZE)
    requests = [Request(number, prompt, prompt[:1]) for number, prompt in enumerate(prompts)]
    eviction = policy()
    if eviction.oracle:
        eviction.on_future([RequestView(request) for request in requests])
    scheduler = Scheduler(CacheConfig(nodes, PAGE_SIZE), config, Fcfs(), eviction)
    for first in range(0, nodes, 256):
        for request in requests[first : first + 256]:
            scheduler.add(request, 0.0)
        while (batch := scheduler.schedule(0.0)) is not None:
            scheduler.commit(batch, StepResult(0.0), 0.0)
    cache = scheduler.cache
    assert cache.num_free_pages == 0 and cache.num_evictable_pages == nodes
    times = []
    for _ in range(EVICTIONS):
        start = time.perf_counter()
        cache.take(1)
        times.append(1e6 * (time.perf_counter() - start))
    return statistics.median(times)


def keyed_evictions() -> list[str]:
    """The policies that ship and rank nodes by a key, so that the cache keeps their order."""
    return [
        name
        for name in registry.BUILT_IN["eviction"]
        if registry.find("eviction", name).victims is EvictionPolicy.victims  # type: ignore[union-attr]
    ]


def run() -> list[Reached]:
    """Every router that ships, on one fleet; every eviction policy with a key, on two trees."""
    medians = {}
    for name, times in decision_times().items():
        medians[name] = statistics.median(times)
        worst = statistics.quantiles(times, n=100)[98]
        print(f"{name:<18} median {medians[name]:7.1f} us, p99 {worst:8.1f} us")
    slowest = max(medians, key=medians.__getitem__)
    print(f"slowest: {slowest}")
    growths = {}
    for name in keyed_evictions():
        costs = [
            eviction_microseconds(lambda name=name: registry.eviction(name), nodes)  # type: ignore[misc]
            for nodes in (SMALL, LARGE)
        ]
        growths[name] = costs[1] / costs[0]
        print(
            f"{name:<18} eviction {costs[0]:6.2f} us of {SMALL:,} nodes, {costs[1]:6.2f} us of "
            f"{LARGE:,}: {growths[name]:.2f}x (log n: {math.log(LARGE) / math.log(SMALL):.2f}x)"
        )
    return [DECISION.reached(medians[slowest] / LIMIT_US), GROWTH.reached(max(growths.values()))]


BENCHMARK = Benchmark(
    "routing",
    f"how long is a decision for {REPLICAS} replicas with {NODES:,} cached nodes, and does an "
    "eviction stay O(log n)?",
    (DECISION, GROWTH),
    run,
)
