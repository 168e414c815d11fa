"""Simulation: one run in frozen objects, ready to be carried out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from testbed.core.config import CacheConfig, SchedulerConfig
from testbed.core.cost import CostModel
from testbed.core.policy import EvictionPolicy, RoutingPolicy, SchedulingPolicy
from testbed.core.records import RunRecord
from testbed.sim.latency import LatencyModel
from testbed.sim.sight import check_staleness
from testbed.sim.world import simulate
from testbed.workloads import Workload


@dataclass(frozen=True)
class Simulation:
    """A workload, the replicas that serve it, and the policies; each run makes new policies.

    kv_bytes_per_token: over all cards of a replica. staleness: seconds between two looks of the
    router at loads and caches; 0 is live. check_invariants: balance the cache's books
    after every step that decides something, which is slow.
    """

    workload: Workload
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
        if self.replicas < 1:
            raise ValueError(f"replicas={self.replicas}: at least 1 is needed")
        check_staleness(self.staleness)
        self.policy(), self.eviction(), self.routing()
        self.scheduler.check_page_size(self.cache.page_size)

    def run(self, progress: Callable[[int], None] | None = None) -> RunRecord:
        """Serve the workload; `progress` hears how many requests have left."""
        record = simulate(
            self.workload,
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
        return record._replace(counters={**record.counters, **counters})
