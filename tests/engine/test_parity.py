"""Decision parity: the simulator, given an engine run's times and tokens, decides the same."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from testbed.core.batch import BatchShape
from testbed.core.config import CacheConfig, SchedulerConfig
from testbed.core.cost import CostModel
from testbed.core.records import ADDED_COLUMNS, MEASURED_COLUMNS, added_row, columns_of
from testbed.core.request import Request
from testbed.engine.loop import EngineRun, serve
from testbed.policies import Delay, SequenceView, registry
from testbed.policies.scheduling.arrival import Fcfs
from testbed.sim.recorded import replay
from tests.engine.building import (
    Models,
    ScriptedExecutor,
    run_engine,
    some_requests,
)

TIGHT = SchedulerConfig(
    max_running=8, chunk_size=40, reserve="ratio", reserve_ratio=0.05, reserve_ratio_floor=0.05
)
POLICIES = [
    name
    for name in registry.names("scheduling")
    # An oracle needs outputs that are known before the model has said them.
    if not registry.find("scheduling", name).oracle
]
SWITCHES = list(product(("lru", "lfu", "fifo"), ("mixed", "prefill_first"), (1, 16)))
PRESSED = {"admit", "batch", "evict", "preempt", "finish"}
"""The decisions that a run under memory pressure takes."""


def pressing_requests() -> list[Request]:
    """All at once, so that memory runs short whatever the machine's speed."""
    return some_requests(12, seed=2, alone=24, outputs=120)


def check_repeats(
    run: EngineRun,
    cache: CacheConfig,
    scheduler: SchedulerConfig,
    *named: str,
    cost: CostModel | None = None,
) -> None:
    """The simulator takes every decision alike. named: scheduling and eviction policy."""
    policy, eviction = named
    again = replay(
        run.added,
        run.measured,
        cache=cache,
        scheduler=scheduler,
        policy=registry.scheduling(policy),
        eviction=registry.eviction(eviction),
        cost=cost,
    )
    assert (again.diverged, run.log.first_difference(again.log)) == (None, None)
    assert again.log == run.log
    assert again.outputs.keys() == run.outputs.keys()
    for id, tokens in run.outputs.items():
        assert np.array_equal(tokens, again.outputs[id])


@pytest.mark.parametrize(("eviction", "batching", "page_size"), SWITCHES)
@pytest.mark.parametrize("policy", POLICIES)
def test_the_simulator_repeats_every_decision(
    policy: str, eviction: str, batching: Any, page_size: int
) -> None:
    """What is sampled is given: it makes no difference to what is decided, but to the time."""
    cache = CacheConfig(num_pages=208 // page_size, page_size=page_size)
    scheduler = replace(TIGHT, batching=batching)
    run = serve(
        pressing_requests(),
        executor=ScriptedExecutor(),
        cache=cache,
        scheduler=scheduler,
        policy=registry.scheduling(policy),
        eviction=registry.eviction(eviction),
    )
    assert {row[2] for row in run.log.rows} >= PRESSED
    check_repeats(run, cache, scheduler, policy, eviction)


def step_seconds(shape: BatchShape) -> float:
    """Dear starts, and attention that dominates: nothing like a second for each token."""
    return 5.0 + shape.prefill_tokens + 0.1 * shape.prefill_pairs + 0.01 * shape.decode_context


@pytest.mark.parametrize("named", [("fcfs", "pgdsf"), ("fcfs", "marconi"), ("srpt", "lru")])
def test_policies_that_weigh_costs_weigh_the_same_ones(named: tuple[str, str]) -> None:
    policy, eviction = named
    cache = CacheConfig(num_pages=300, page_size=1)
    cost = CostModel(step_seconds, flops_per_token=100.0, flops_per_pair=30.0)

    def run(cost: CostModel | None) -> EngineRun:
        return serve(
            pressing_requests(),
            executor=ScriptedExecutor(),
            cache=cache,
            scheduler=TIGHT,
            policy=registry.scheduling(policy),
            eviction=registry.eviction(eviction),
            cost=cost,
        )

    weighed = run(cost)
    check_repeats(weighed, cache, TIGHT, policy, eviction, cost=cost)
    assert weighed.log != run(None).log, "the costs decide nothing here"


@pytest.mark.parametrize(("eviction", "batching", "page_size"), SWITCHES)
@pytest.mark.parametrize("policy", ["lpm", "dlpm"])
def test_so_it_does_with_a_real_model(
    models: Models, policy: str, eviction: str, batching: Any, page_size: int
) -> None:
    cache = CacheConfig(num_pages=208 // page_size, page_size=page_size)
    scheduler = replace(TIGHT, batching=batching)
    run = run_engine(
        models["tiny-llama"],
        pressing_requests(),
        cache,
        scheduler,
        policy=policy,
        eviction=eviction,
    )
    assert {row[2] for row in run.log.rows} >= PRESSED
    check_repeats(run, cache, scheduler, policy, eviction)


@pytest.mark.parametrize(
    "cache",
    [
        CacheConfig(num_pages=14, page_size=16, kind="block_hash", insert_at="schedule"),
        CacheConfig(num_pages=14, page_size=16, kind="none"),
        CacheConfig(num_pages=14, page_size=16, insert_at="schedule"),
        CacheConfig(
            num_pages=224,
            page_size=1,
            granularity="node",
            split_touch="sglang",
            touch_on_peek=True,
        ),
    ],
    ids=["block_hash", "none", "insert at schedule", "sglang"],
)
def test_every_kind_of_cache_repeats_too(models: Models, cache: CacheConfig) -> None:
    requests = pressing_requests()
    scheduler = replace(TIGHT, victim="fewest_generated")
    run = run_engine(models["tiny-llama"], requests, cache, scheduler, policy="lpm")
    check_repeats(run, cache, scheduler, "lpm", "lru")


class Hesitant(Fcfs):
    """Delays every third request, so that release times matter; ages by `now`."""

    def on_arrival(self, sequence: SequenceView) -> Delay | None:
        if sequence.id % 3 or sequence.arrival + 0.003 <= self.view.now:
            return None
        return Delay(sequence.arrival + 0.003)

    def on_start(self, view: Any) -> None:
        super().on_start(view)
        self.view = view


@pytest.mark.parametrize("skip_idle", [True, False])
@pytest.mark.parametrize("seed", range(6))
def test_sparse_arrivals_and_delays_repeat_to_the_instant(seed: int, skip_idle: bool) -> None:
    draw = np.random.default_rng(seed)
    times = np.cumsum(draw.exponential(0.002, 40))
    times[::7] = times[1::7][: len(times[::7])]
    times.sort()
    requests = [
        replace(request, arrival=float(time))
        for request, time in zip(some_requests(40, seed), times, strict=True)
    ]
    cache = CacheConfig(num_pages=60, page_size=4)
    run = serve(
        requests,
        executor=ScriptedExecutor(),
        cache=cache,
        scheduler=TIGHT,
        policy=Hesitant(),
        eviction=registry.eviction("lru"),
        skip_idle=skip_idle,
    )
    policy = Hesitant()
    again = replay(
        run.added,
        run.measured,
        cache=cache,
        scheduler=TIGHT,
        policy=policy,
        eviction=registry.eviction("lru"),
    )
    assert (again.diverged, run.log.first_difference(again.log)) == (None, None)
    # To the bit: the last instant that the replay's policy saw is the engine's.
    assert policy.view.now == run.record.requests["finish_s"].max()


def test_a_replay_that_decides_otherwise_is_told_apart(models: Models) -> None:
    requests = pressing_requests()
    cache = CacheConfig(num_pages=224, page_size=1)
    run = run_engine(models["tiny-llama"], requests, cache, TIGHT, policy="fcfs")
    other = replay(
        run.added,
        run.measured,
        cache=cache,
        scheduler=TIGHT,
        policy=registry.scheduling("dfs"),
        eviction=registry.eviction("lru"),
    )
    difference = run.log.first_difference(other.log)
    assert difference is not None
    assert " here, " in difference


def test_what_the_model_refuses_is_refused_again() -> None:
    requests = some_requests(8, seed=4)
    for id in (2, 5):
        requests[id] = replace(requests[id], prompt=np.array([-1, 3], dtype=np.int32))
    requests.insert(4, Request(9, np.zeros(90, dtype=np.int32), max_new_tokens=12))
    cache = CacheConfig(num_pages=100, page_size=1)
    run = serve(
        requests,
        executor=ScriptedExecutor(),
        cache=cache,
        scheduler=TIGHT,
        policy=Fcfs(),
        eviction=registry.eviction("lru"),
    )
    again = replay(
        run.added,
        run.measured,
        cache=cache,
        scheduler=TIGHT,
        policy=Fcfs(),
        eviction=registry.eviction("lru"),
    )
    assert [row[3] for row in run.log.rows if row[2] == "refuse"] == [2, 9, 5]
    assert (again.diverged, run.log.first_difference(again.log)) == (None, None)
    assert again.outputs.keys() == run.outputs.keys() == {0, 1, 3, 4, 6, 7}


def test_a_replay_cannot_go_past_the_recorded_steps() -> None:
    request = replace(some_requests(1)[0], max_new_tokens=2)
    step = dict.fromkeys(MEASURED_COLUMNS, 0) | {
        "step": 1,
        "seconds": 0.5,
        "tokens": np.array([5], dtype=np.int32),
    }
    short = replay(
        columns_of([added_row(request, 0.0, "")], ADDED_COLUMNS),
        columns_of([tuple(step.values())], MEASURED_COLUMNS),
        cache=CacheConfig(num_pages=100, page_size=1),
        scheduler=SchedulerConfig(),
        policy=Fcfs(),
        eviction=registry.eviction("lru"),
    )
    assert short.diverged == "step 2: 1 steps were recorded"
