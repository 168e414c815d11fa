"""Simulation: one run in frozen objects, ready to be carried out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from testbed.core.config import CacheConfig, SchedulerConfig
from testbed.core.cost import CostModel
from testbed.core.policy import EvictionPolicy, RoutingPolicy, SchedulingPolicy
from testbed.core.records import RunRecord
from testbed.core.request import Request, Tokens
from testbed.core.source import RequestSource
from testbed.sim.latency import LatencyModel
from testbed.sim.sight import check_staleness
from testbed.sim.world import simulate
from testbed.workloads import Retimed, Workload
from testbed.workloads.arrivals import TimedArrivals
from testbed.workloads.workload import ProgramWorkload

MAX_REPLICAS = 10_000
"""More than anybody runs, and few enough to be simulated in memory."""
MAX_SECONDS = 1e9
"""32 years; beyond them the clock, a float64, no longer tells microseconds apart."""


class TimeError(ValueError):
    """Something is due at a time that the simulator's clock cannot hold."""


class Run(NamedTuple):
    """What happened, and the requests that were asked, for the bounds."""

    record: RunRecord
    requests: Iterable[Request]


@dataclass(frozen=True)
class Simulation:
    """A workload, the replicas that serve it, and the policies; each run makes new policies.

    kv_bytes_per_token: over all cards of a replica. staleness: seconds between two looks of the
    router at loads and caches; 0 is live. check_invariants: balance the cache's books
    after every step that decides something, which is slow.
    """

    workload: Workload | Retimed[Any]
    cache: CacheConfig
    scheduler: SchedulerConfig
    policy: Callable[[], SchedulingPolicy]
    eviction: Callable[[], EvictionPolicy]
    routing: Callable[[], RoutingPolicy]
    latency: LatencyModel
    kv_bytes_per_token: int
    cost: CostModel | None = None
    replicas: int = 1
    staleness: float = 0.0
    record_decisions: bool = False
    check_invariants: bool = False

    def check(self) -> None:
        """Raise ValueError for what a run would refuse: policies' parameters, sizes that clash."""
        if not 1 <= self.replicas <= MAX_REPLICAS:
            raise ValueError(f"replicas={self.replicas}: 1 to {MAX_REPLICAS:,} are needed")
        check_staleness(self.staleness)
        self.policy(), self.routing()
        self.scheduler.check_page_size(self.cache.page_size)
        if self.eviction().oracle and isinstance(self._asked(), RequestSource):
            raise ValueError(
                f"eviction={type(self.eviction()).__name__}: an oracle has to know all requests "
                "ahead; what programs ask, and clients in a closed loop, depends on what leaves"
            )
        if isinstance(self.workload, Retimed) and len(self.workload):
            arrivals = self.workload.arrivals
            if isinstance(arrivals, TimedArrivals):
                _check_time(float(arrivals.times(len(self.workload))[-1]))

    @property
    def unit(self) -> str:
        """What the length of the workload, and the progress of a run, count."""
        workload = self.workload.workload if isinstance(self.workload, Retimed) else self.workload
        return "programs" if isinstance(workload, ProgramWorkload) else "requests"

    def run(self, progress: Callable[[int], None] | None = None) -> Run:
        """Serve the workload; `progress` hears how many of its requests, or programs, are over.

        TimeError if something is due after MAX_SECONDS.
        """
        told = self._asked()
        asked = _Kept(told) if isinstance(told, RequestSource) else _Timely(told)
        record = simulate(
            asked,
            cache=self.cache,
            scheduler=self.scheduler,
            policy=self.policy,
            eviction=self.eviction,
            routing=self.routing(),
            latency=self.latency,
            replicas=self.replicas,
            staleness=self.staleness,
            cost=self.cost,
            record_decisions=self.record_decisions,
            progress=progress,
            check_invariants=self.check_invariants,
        )
        counters = {
            "bytes_per_page": self.kv_bytes_per_token * self.cache.page_size,
            "skipped_lines": self.workload.skipped_lines,
        }
        record = record._replace(counters={**record.counters, **counters})
        return Run(record, asked.requests if isinstance(asked, _Kept) else asked)

    def _asked(self) -> Iterable[Request] | RequestSource:
        return self.workload.requests() if isinstance(self.workload, Retimed) else self.workload


def _check_time(time: float) -> None:
    if not time <= MAX_SECONDS:
        raise TimeError(
            f"arrivals: something is due at {time:g} s; {MAX_SECONDS:g} s at most are needed"
        )


class _Timely:
    """Requests of an open loop, none of them after MAX_SECONDS."""

    def __init__(self, requests: Iterable[Request]) -> None:
        self._requests = requests

    def __iter__(self) -> Iterator[Request]:
        for request in self._requests:
            _check_time(request.arrival)
            yield request


class _Kept(RequestSource):
    """A source that remembers what was asked: what programs ask is known afterwards only."""

    def __init__(self, source: RequestSource) -> None:
        self.requests: list[Request] = []
        self._source = source

    @property
    def ended(self) -> int:
        return self._source.ended

    @property
    def next_time(self) -> float | None:
        time = self._source.next_time
        if time is not None:
            _check_time(time)
        return time

    @property
    def unfinished(self) -> str | None:
        return self._source.unfinished

    def take(self, now: float) -> list[Request]:
        due = self._source.take(now)
        self.requests += due
        return due

    def left(self, request_id: int, output: Tokens | None, now: float) -> None:
        self._source.left(request_id, output, now)
