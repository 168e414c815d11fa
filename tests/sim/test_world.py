"""Whole simulations: what comes out adds up, comes in order, and comes out the same again."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from testbed.core.config import CacheConfig, SchedulerConfig
from testbed.core.policy import Delay, PolicyError, Refuse, RoutingPolicy
from testbed.core.records import (
    DECISION_COLUMNS,
    DECISION_KINDS,
    REQUEST_COLUMNS,
    STEP_COLUMNS,
    RunRecord,
)
from testbed.core.request import Request
from testbed.core.views import SequenceView
from testbed.policies.eviction.recency import Lru
from testbed.policies.routing.load import RoundRobin
from testbed.policies.scheduling.arrival import Fcfs
from testbed.sim.latency import FixedLatency
from testbed.sim.world import simulate
from tests.core.building import make_request
from tests.sim.worlds import World, same, small_world, worlds


def table(columns: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        dict(zip(columns, row, strict=True))
        for row in zip(*(values.tolist() for values in columns.values()), strict=True)
    ]


@settings(max_examples=250)
@given(worlds())
def test_every_request_leaves_and_every_token_is_accounted_for(world: World) -> None:
    record = world.run()
    rows = table(record.requests)
    by_id = {request.id: request for request in world.requests}
    assert sorted(row["request"] for row in rows) == sorted(by_id)
    for row in rows:
        check_request(row, by_id[row["request"]], world)
    for replica in range(world.replicas):
        check_computed_tokens(record, replica, by_id)


def check_request(row: dict[str, Any], request: Request, world: World) -> None:
    assert request.output is not None
    page = world.cache.page_size
    if row["status"] == "refused":
        lifetime = len(request.prompt) + request.max_new_tokens - 1
        assert -(-lifetime // page) > world.cache.num_pages
        assert (row["output_tokens"], row["admitted_s"], row["finish_s"]) == (0, -1.0, -1.0)
        return
    assert row["output_tokens"] == len(request.output)
    assert row["arrival_s"] <= row["admitted_s"]
    assert row["admitted_s"] < row["first_token_s"] <= row["finish_s"]
    assert (row["first_token_s"] == row["finish_s"]) <= (row["output_tokens"] == 1)
    assert row["cached_tokens"] % page == 0
    assert row["cached_tokens"] <= len(request.prompt) - world.scheduler.min_computed_tokens
    spans = [tuple(map(int, span.split("-"))) for span in row["decode_spans"].split()]
    assert len(spans) <= row["preemptions"] + 1
    assert all(first <= last for first, last in spans)
    assert all(last < first for (_, last), (first, _) in pairwise(spans))
    if world.scheduler.batching == "mixed":
        assert sum(last - first + 1 for first, last in spans) == row["output_tokens"]
    if world.scheduler.reserve == "full":
        assert row["preemptions"] == 0
    if not row["preemptions"]:
        assert row["rehit_tokens"] == row["recomputed_tokens"] == 0


def check_computed_tokens(record: RunRecord, replica: int, by_id: dict[int, Request]) -> None:
    """KV grows by computing and by hits, and shrinks at preemptions, to prompt + output - 1."""
    assert record.decisions is not None
    here = [row for row in table(record.requests) if row["replica"] == replica]
    steps = [row for row in table(record.steps) if row["replica"] == replica]
    decisions = [row for row in table(record.decisions) if row["replica"] == replica]
    final = sum(
        row["prompt_tokens"] + row["output_tokens"] - 1
        for row in here
        if row["status"] == "finished"
    )
    hits = sum(row["cached_tokens"] + row["rehit_tokens"] for row in here)
    dropped = sum(row["tokens"] for row in decisions if row["kind"] == "preempt")
    computed = sum(row["decode_rows"] + row["prefill_tokens"] for row in steps)
    assert computed == final - hits + dropped
    again = sum(row["recomputed_tokens"] for row in here)
    assert again >= dropped - sum(row["rehit_tokens"] for row in here)
    # The decision log tells the same story.
    batches = [row for row in decisions if row["kind"] == "batch"]
    assert [row["step"] for row in batches] == [row["step"] for row in steps]
    assert [row["tokens"] for row in batches] == [
        row["decode_rows"] + row["prefill_tokens"] for row in steps
    ]
    admissions = [row for row in decisions if row["kind"] == "admit"]
    assert sum(row["tokens"] for row in admissions) == hits
    finished = [row["request"] for row in decisions if row["kind"] == "finish"]
    assert finished == [row["request"] for row in here if row["status"] == "finished"]
    evicted = sum(row["tokens"] for row in decisions if row["kind"] == "evict")
    page_size = record.counters["page_size"]
    assert evicted == page_size * sum(row["evicted_pages"] for row in steps)


@settings(max_examples=150)
@given(worlds())
def test_time_goes_forward_and_pages_stay_in_the_pool(world: World) -> None:
    record = world.run()
    arrivals = {request.id: request.arrival for request in world.requests}
    for replica in range(world.replicas):
        steps = [row for row in table(record.steps) if row["replica"] == replica]
        assert [row["step"] for row in steps] == list(range(1, len(steps) + 1))
        for row in steps:
            assert row["start_s"] < row["end_s"]
            assert row["decode_rows"] + row["prefill_rows"] > 0
            assert row["running"] <= world.scheduler.max_running
            held = row["free_pages"] + row["evictable_pages"] + row["locked_pages"]
            assert 0 <= held <= world.cache.num_pages
            if world.scheduler.batching == "prefill_first":
                assert not (row["decode_rows"] and row["prefill_rows"])
        rows = [row for row in table(record.requests) if row["replica"] == replica]
        leaving = [max(row["finish_s"], row["arrival_s"]) for row in rows]
        assert leaving == sorted(leaving)
        # Between two steps the replica only idles if everybody had left by then.
        for before, after in pairwise(steps):
            assert after["start_s"] >= before["end_s"]
            if after["start_s"] > before["end_s"]:
                assert all(
                    row["finish_s"] <= before["end_s"] or row["arrival_s"] > before["end_s"]
                    for row in rows
                )
        ends = {row["step"]: row["end_s"] for row in steps}
        starts = {row["step"]: row["start_s"] for row in steps}
        for row in rows:
            assert row["arrival_s"] == arrivals[row["request"]]
            if row["status"] == "finished":
                spans = row["decode_spans"].split()
                assert starts[row["admitted_step"]] == row["admitted_s"]
                assert ends[int(spans[0].split("-")[0])] == row["first_token_s"]
                assert ends[int(spans[-1].split("-")[1])] == row["finish_s"]


@settings(max_examples=60)
@given(worlds())
def test_the_same_world_gives_the_same_bytes(world: World) -> None:
    first, second = world.run(), world.run()
    assert same(first, second) == ""
    assert pickle.dumps(first.steps) == pickle.dumps(second.steps)


@settings(max_examples=60)
@given(worlds())
def test_looking_at_the_run_changes_nothing(world: World) -> None:
    watched, alone = world.run(), world.run(check_invariants=False, record_decisions=False)
    assert alone.decisions is None
    assert same(watched._replace(decisions=None), alone) == ""


@settings(max_examples=60)
@given(worlds())
def test_other_token_ids_change_nothing_but_digests(world: World) -> None:
    def renamed(request: Request) -> Request:
        assert request.output is not None
        prompt, output = 1_000_003 * (request.prompt + 1), 1_000_003 * (request.output + 1)
        return replace(request, prompt=prompt, output=output)

    other = replace(world, requests=tuple(map(renamed, world.requests)))
    assert same(world.run(), other.run()) == ""


def test_a_record_has_exactly_the_documented_columns() -> None:
    record = small_world([make_request(0, [1, 2], 3), make_request(1, range(2000))]).run()
    for columns, schema in (
        (record.requests, REQUEST_COLUMNS),
        (record.steps, STEP_COLUMNS),
        (record.decisions, DECISION_COLUMNS),
    ):
        assert columns is not None
        assert list(columns) == list(schema)
        for name, column in schema.items():
            assert columns[name].dtype == (object if column.dtype == "str" else column.dtype)
    assert record.decisions is not None
    assert set(record.decisions["kind"].tolist()) <= set(DECISION_KINDS)
    assert record.counters["num_pages"] == 1000
    assert record.counters["replicas"] == 1


def test_a_world_in_which_all_are_refused_has_no_steps() -> None:
    record = small_world([make_request(0, range(50), arrival=1.5)], num_pages=10).run()
    assert record.requests["status"].tolist() == ["refused"]
    assert record.requests["refusal"].tolist() == ["needs 50 pages, the pool has 10"]
    assert len(record.steps["step"]) == 0


def run(requests: Iterable[Request], **changes: Any) -> RunRecord:
    arguments: dict[str, Any] = {
        "cache": CacheConfig(100, 1),
        "scheduler": SchedulerConfig(),
        "policy": Fcfs,
        "eviction": Lru,
        "latency": FixedLatency(1.0),
        "routing": RoundRobin(),
    }
    return simulate(requests, **{**arguments, **changes})


class Fixed(RoutingPolicy):
    def __init__(self, chosen: int) -> None:
        self.chosen = chosen

    def choose(self, request: Request, replicas: tuple[Any, ...], now: float) -> int:
        return self.chosen


@pytest.mark.parametrize(
    ("arrivals", "changes", "message"),
    [
        ([], {}, "the workload holds no requests"),
        ([0.0], {"replicas": 0}, "replicas=0: at least 1 is needed"),
        ([2.0, 1.0], {}, r"request 1: arrival 1.0 is before"),
        ([-1.0], {}, r"request 0: arrival -1.0 is"),
        ([0.0], {"routing": Fixed(1)}, "Fixed chose replica 1; 0 to 0 exist"),
        ([0.0], {"routing": Fixed(-1)}, "Fixed chose replica -1; 0 to 0 exist"),
    ],
)
def test_what_cannot_be_simulated_is_an_error(
    arrivals: list[float], changes: dict[str, Any], message: str
) -> None:
    requests = [make_request(n, [n], arrival=arrival) for n, arrival in enumerate(arrivals)]
    with pytest.raises(ValueError, match=message):
        run(iter(requests), **changes)


def test_a_policy_that_starves_the_replica_is_named() -> None:
    class Idle(Fcfs):
        def candidates(self, view: Any) -> Any:
            return iter(())

    with pytest.raises(PolicyError, match="Idle proposes nothing that runs"):
        run([make_request(0, [1])], policy=Idle)


def test_progress_counts_those_who_left() -> None:
    told: list[int] = []
    requests = [make_request(n, range(50 * n, 50 * n + 1 + 60 * n)) for n in range(3)]
    run(requests, progress=told.append)
    assert told == [1, 2, 3]


class Doorkeeper(Fcfs):
    """Answers the first arrivals of each request from a table by request id."""

    def __init__(self, answers: dict[int, list[Delay | Refuse | None]]) -> None:
        super().__init__()
        self.answers = {id: list(those) for id, those in answers.items()}
        self.asked: list[tuple[float, int]] = []
        self.now: Any = None

    def on_start(self, view: Any) -> None:
        self.view = view

    def on_arrival(self, sequence: SequenceView) -> Delay | Refuse | None:
        self.asked.append((self.view.now, sequence.id))
        mine = self.answers.get(sequence.id, [])
        return mine.pop(0) if mine else None


@pytest.mark.parametrize("skip", [True, False])
def test_a_delayed_request_wakes_an_idle_replica(skip: bool) -> None:
    door = Doorkeeper({0: [Delay(4.5), Delay(6.0)]})
    record = run([make_request(0, [1])], policy=lambda: door, skip_quiet_steps=skip)
    assert door.asked == [(0.0, 0), (4.5, 0), (6.0, 0)]
    assert record.requests["admitted_s"].tolist() == [6.0]


@pytest.mark.parametrize("skip", [True, False])
def test_a_newcomer_does_not_wait_for_a_delayed_one(skip: bool) -> None:
    door = Doorkeeper({0: [Delay(50.0)]})
    requests = [make_request(0, [1]), make_request(1, [2], 3, arrival=10.0)]
    record = run(requests, policy=lambda: door, skip_quiet_steps=skip)
    assert record.requests["request"].tolist() == [1, 0]
    assert record.requests["admitted_s"].tolist() == [10.0, 50.0]


@pytest.mark.parametrize("skip", [True, False])
def test_a_delayed_request_joins_a_running_batch_at_a_step_s_start(skip: bool) -> None:
    door = Doorkeeper({1: [Delay(3.5)]})
    requests = [make_request(0, [1], 9), make_request(1, [2], arrival=0.5)]
    record = run(requests, policy=lambda: door, skip_quiet_steps=skip)
    assert record.requests["admitted_s"].tolist() == [4.0, 0.0]
    assert door.asked == [(0.0, 0), (0.5, 1), (4.0, 1)]


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("busy", [True, False])
def test_a_delayed_request_that_is_refused_in_the_end_leaves(skip: bool, busy: bool) -> None:
    door = Doorkeeper({0: [Delay(3.0), Refuse("too late")]})
    requests = [make_request(0, [1]), make_request(1, [2], 6 if busy else 1)]
    record = run(requests, policy=lambda: door, skip_quiet_steps=skip)
    row = next(row for row in table(record.requests) if row["request"] == 0)
    assert (row["status"], row["refusal"]) == ("refused", "too late")
    assert len(record.requests["request"]) == 2


def test_a_refusing_policy_is_recorded() -> None:
    door = Doorkeeper({0: [Refuse("no")]})
    record = run([make_request(0, [1]), make_request(1, [2])], policy=lambda: door)
    assert record.requests["status"].tolist() == ["refused", "finished"]
    assert record.requests["refusal"].tolist() == ["no", ""]


def test_replicas_have_caches_and_policies_of_their_own() -> None:
    requests = [make_request(n, [1, 2, 3], arrival=float(10 * n)) for n in range(4)]
    record = run(requests, replicas=2)
    assert record.requests["replica"].tolist() == [0, 0, 1, 1]
    assert record.requests["request"].tolist() == [0, 2, 1, 3]
    assert record.requests["cached_tokens"].tolist() == [0, 2, 0, 2]
    assert record.steps["replica"].tolist() == [0, 0, 1, 1]
    assert record.steps["step"].tolist() == [1, 2, 1, 2]


def test_a_router_does_not_learn_the_output() -> None:
    # "Policies never see it": neither the tokens nor how many they will be.
    class Nosy(RoutingPolicy):
        def choose(self, request: Any, replicas: tuple[Any, ...], now: float) -> int:
            assert getattr(request, "output", None) is None
            return 0

    run([make_request(0, [1], 5)], routing=Nosy())


def test_a_router_cannot_change_a_replica() -> None:
    class Vandal(RoutingPolicy):
        def choose(self, request: Request, replicas: tuple[Any, ...], now: float) -> int:
            for name in ("index", "num_waiting", "num_running"):
                with pytest.raises(AttributeError):
                    setattr(replicas[0], name, 7)
            assert not hasattr(replicas[0], "submit")
            return 0

    run([make_request(0, [1])], routing=Vandal())


def test_steps_without_duration_end_too() -> None:
    record = run([make_request(n, [n], 5) for n in range(3)], latency=FixedLatency(0.0))
    assert np.all(record.requests["finish_s"] == 0.0)
    assert len(record.steps["step"]) == 5
