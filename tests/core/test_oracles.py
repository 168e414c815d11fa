"""Only a policy that declares itself an oracle sees the future."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from testbed.core.config import CacheConfig, SchedulerConfig
from testbed.core.policy import EvictionPolicy, Proposals
from testbed.core.request import Request
from testbed.core.scheduler import Scheduler
from testbed.core.views import NodeView, OracleView, RequestView, SchedulerView, SequenceView
from testbed.policies.eviction.recency import Lru
from testbed.policies.routing.load import RoundRobin
from testbed.policies.scheduling.arrival import Fcfs
from testbed.sim import FixedLatency, simulate
from tests.core.building import make_request, tokens_of


class Shortest(Fcfs):
    """True shortest output first."""

    oracle = True

    def candidates(self, view: SchedulerView) -> Proposals:
        def length(sequence: SequenceView) -> int:
            assert isinstance(sequence, OracleView)
            return sequence.num_output_tokens

        return iter(sorted(view.waiting, key=length))


def scheduler_of(policy: Fcfs) -> Scheduler:
    return Scheduler(CacheConfig(num_pages=50, page_size=1), SchedulerConfig(), policy, Lru())


def test_an_oracle_knows_true_output_lengths() -> None:
    scheduler = scheduler_of(Shortest())
    for id, output in enumerate((5, 2, 4)):
        scheduler.add(make_request(id, [id, 100], output, max_new_tokens=9), 0.0)
    batch = scheduler.schedule(0.0)
    assert batch is not None
    assert [row.sequence.request.id for row in batch.prefills] == [1, 2, 0]


def test_other_policies_do_not() -> None:
    sequence = scheduler_of(Fcfs()).add(make_request(0, [1, 2]), 0.0)
    assert not hasattr(sequence.view, "num_output_tokens")


def test_an_oracle_cannot_serve_what_a_model_will_decide() -> None:
    request = Request(4, tokens_of([1, 2]), max_new_tokens=3)
    scheduler = scheduler_of(Shortest())
    scheduler.add(request, 0.0)
    with pytest.raises(ValueError, match="request 4: an oracle needs requests with scripted"):
        scheduler.schedule(0.0)


class Foresight(EvictionPolicy):
    oracle = True

    def __init__(self, told: list[list[int]]) -> None:
        self.told = told

    def on_future(self, requests: Sequence[RequestView]) -> None:
        self.told.append([request.id for request in requests])

    def priority(self, node: NodeView, now: int) -> int:
        return 0


def test_an_eviction_oracle_is_told_the_whole_run_on_every_replica() -> None:
    told: list[list[int]] = []
    simulate(
        (make_request(id, [id, 100], arrival=float(id)) for id in range(3)),
        cache=CacheConfig(num_pages=50, page_size=1),
        scheduler=SchedulerConfig(),
        policy=Fcfs,
        eviction=lambda: Foresight(told),
        latency=FixedLatency(),
        routing=RoundRobin(),
        replicas=2,
    )
    assert told == [[0, 1, 2], [0, 1, 2]]
