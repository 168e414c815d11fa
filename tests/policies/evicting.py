"""A cache that is served request by request, a second each, to see what an eviction rule keeps."""

from __future__ import annotations

from typing import Any

from testbed.core.batch import StepResult
from testbed.core.config import CacheConfig, SchedulerConfig
from testbed.core.cost import CostModel
from testbed.core.request import Sequence
from testbed.core.scheduler import Scheduler
from testbed.policies import EvictionPolicy
from testbed.policies.scheduling.arrival import Fcfs
from tests.core.building import make_request, tokens_of


class Served:
    """One sequence runs at a time; `now` may be moved on between requests."""

    def __init__(
        self,
        eviction: EvictionPolicy,
        num_pages: int,
        page_size: int = 1,
        cost: CostModel | None = None,
    ) -> None:
        cache = CacheConfig(num_pages, page_size)
        config = SchedulerConfig(max_running=1)
        self.scheduler = Scheduler(cache, config, Fcfs(), eviction, cost=cost)
        self.now = 0.0
        self._count = 0

    def add(self, *prompt: int, **hints: Any) -> Sequence:
        """A request of one output token waits."""
        self._count += 1
        return self.scheduler.add(make_request(self._count, prompt, **hints), self.now)

    def run(self) -> None:
        """Serve all that wait, a second each."""
        while (batch := self.scheduler.schedule(self.now)) is not None:
            self.now += 1.0
            self.scheduler.commit(batch, StepResult(1.0), self.now)
            self.scheduler.cache.check(self.scheduler.running)

    def serve(self, *prompt: int, **hints: Any) -> int:
        """A request from arrival to finish; returns its cached tokens."""
        sequence = self.add(*prompt, **hints)
        self.run()
        return sequence.num_cached_tokens

    def kept(self, *prompt: int) -> int:
        """Leading tokens that are cached."""
        return self.scheduler.cache.peek(tokens_of(prompt))
