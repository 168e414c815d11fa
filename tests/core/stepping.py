"""A scheduler driven by hand, one second a step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from testbed.core.batch import StepResult
from testbed.core.config import CacheConfig, SchedulerConfig
from testbed.core.decisions import DecisionLog
from testbed.core.policy import EvictionPolicy, SchedulingPolicy
from testbed.core.request import Request, Sequence
from testbed.core.scheduler import Scheduler
from testbed.policies.eviction.recency import Lru
from testbed.policies.scheduling.arrival import Fcfs
from tests.core.building import make_request

# Nothing is reserved for outputs, so that decoding runs out of memory.
GREEDY: Mapping[str, Any] = MappingProxyType(
    {"reserve": "ratio", "reserve_ratio": 0.001, "reserve_ratio_floor": 0.001}
)
CACHE_SWITCHES = frozenset(CacheConfig.__dataclass_fields__)


def repeated_pages(sequences: list[Sequence]) -> int:
    """Entries of their page tables that an earlier one has too."""
    entries = [page for s in sequences for page in s.pages[: s.num_pages].tolist()]
    return len(entries) - len(set(entries))


class Step(NamedTuple):
    """What one step did, by request id. prefills: (id, start, tokens)."""

    decodes: list[int]
    prefills: list[tuple[int, int, int]]
    finished: list[int]


class Stepper:
    """Scheduler and what became of its requests; switches of both configs by their names."""

    def __init__(
        self,
        num_pages: int = 1000,
        policy: SchedulingPolicy | None = None,
        eviction: EvictionPolicy | None = None,
        **switches: Any,
    ) -> None:
        cache = {k: v for k, v in switches.items() if k in CACHE_SWITCHES}
        rest = {k: v for k, v in switches.items() if k not in CACHE_SWITCHES}
        self.log = DecisionLog()
        self.policy = policy or Fcfs()
        self.scheduler = Scheduler(
            CacheConfig(num_pages=num_pages, **{"page_size": 1, **cache}),
            SchedulerConfig(**rest),
            self.policy,
            eviction or Lru(),
            self.log,
        )
        self.now = 0.0
        self.sequences: dict[int, Sequence] = {}

    def add(
        self, prompt: Iterable[int], output: int | Iterable[int] = 1, **fields: Any
    ) -> Sequence:
        return self.submit(make_request(len(self.sequences), prompt, output, **fields))

    def submit(self, request: Request) -> Sequence:
        sequence = self.scheduler.add(request, self.now)
        self.sequences[request.id] = sequence
        return sequence

    def step(self) -> Step | None:
        """One step, with the cache's books checked after each half; None if nothing runs."""
        scheduler = self.scheduler
        batch = scheduler.schedule(self.now)
        scheduler.cache.check(scheduler.running)
        if batch is None:
            return None
        size = scheduler.cache.page_size
        assert batch.shape.decode_shared == size * repeated_pages(batch.decodes)
        decodes = [sequence.request.id for sequence in batch.decodes]
        prefills = [(row.sequence.request.id, row.start, row.num_tokens) for row in batch.prefills]
        self.now += 1.0
        finished = scheduler.commit(batch, StepResult(1.0), self.now)
        scheduler.cache.check(scheduler.running)
        return Step(decodes, prefills, [sequence.request.id for sequence in finished])

    def run(self, limit: int = 10_000) -> list[Step]:
        """Steps until nothing runs."""
        steps: list[Step] = []
        while (step := self.step()) is not None:
            steps.append(step)
            assert len(steps) < limit, "no end in sight"
        return steps
