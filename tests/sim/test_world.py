"""Whole simulations: what comes out adds up, comes in order, and comes out the same again."""

from __future__ import annotations

import pickle
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from testbed.core.config import CacheConfig
from testbed.core.policy import PolicyError, RoutingPolicy
from testbed.core.records import (
    DECISION_COLUMNS,
    DECISION_KINDS,
    REQUEST_COLUMNS,
    STEP_COLUMNS,
    RunRecord,
)
from testbed.core.replica_view import ReplicaView
from testbed.core.request import Request
from testbed.core.views import RequestView
from testbed.policies.scheduling.arrival import Fcfs
from testbed.policies.scheduling.depth_first import DfsWeight
from testbed.sim.latency import FixedLatency
from testbed.workloads import RagWorkload
from tests.core.building import make_request
from tests.sim.worlds import World, plain_run, same, small_world, table, worlds


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


class Fixed(RoutingPolicy):
    def __init__(self, chosen: int) -> None:
        self.chosen = chosen

    def choose(self, request: RequestView, replicas: tuple[ReplicaView, ...], now: float) -> int:
        return self.chosen


@pytest.mark.parametrize(
    ("arrivals", "changes", "message"),
    [
        ([], {}, "the workload holds no requests"),
        ([0.0], {"replicas": 0}, "replicas=0: at least 1 is needed"),
        ([2.0, 1.0], {}, r"request 1: arrival 1.0 is before"),
        ([0.0], {"routing": Fixed(1)}, "Fixed chose replica 1; 0 to 0 exist"),
        ([0.0], {"routing": Fixed(-1)}, "Fixed chose replica -1; 0 to 0 exist"),
    ],
)
def test_what_cannot_be_simulated_is_an_error(
    arrivals: list[float], changes: dict[str, Any], message: str
) -> None:
    requests = [make_request(n, [n], arrival=arrival) for n, arrival in enumerate(arrivals)]
    with pytest.raises((ValueError, PolicyError), match=message):
        plain_run(iter(requests), **changes)


def test_a_policy_that_starves_the_replica_is_named() -> None:
    class Idle(Fcfs):
        def candidates(self, view: Any) -> Any:
            return iter(())

    with pytest.raises(PolicyError, match="Idle proposes nothing that runs"):
        plain_run([make_request(0, [1])], policy=Idle)


def test_progress_counts_those_who_left() -> None:
    told: list[int] = []
    requests = [make_request(n, range(50 * n, 50 * n + 1 + 60 * n)) for n in range(3)]
    plain_run(requests, progress=told.append)
    assert told == [1, 2, 3]


def test_replicas_have_caches_and_policies_of_their_own() -> None:
    requests = [make_request(n, [1, 2, 3], arrival=float(10 * n)) for n in range(4)]
    record = plain_run(requests, replicas=2)
    assert record.requests["replica"].tolist() == [0, 0, 1, 1]
    assert record.requests["request"].tolist() == [0, 2, 1, 3]
    assert record.requests["cached_tokens"].tolist() == [0, 2, 0, 2]
    assert record.steps["replica"].tolist() == [0, 0, 1, 1]
    assert record.steps["step"].tolist() == [1, 2, 1, 2]


def test_a_router_does_not_learn_the_output() -> None:
    class Nosy(RoutingPolicy):
        def choose(
            self, request: RequestView, replicas: tuple[ReplicaView, ...], now: float
        ) -> int:
            public = [name for name in dir(request) if not name.startswith("_")]
            values = [getattr(request, name) for name in public]
            assert "output" not in public
            assert 17 not in [value for value in values if isinstance(value, int)]
            assert request.max_new_tokens == 99
            return 0

    plain_run([make_request(0, [1], 17, max_new_tokens=99)], routing=Nosy())


def test_a_router_changes_nothing_but_its_choice() -> None:
    class Vandal(RoutingPolicy):
        def choose(
            self, request: RequestView, replicas: tuple[ReplicaView, ...], now: float
        ) -> int:
            for view in (request, replicas[0]):
                for name in [name for name in dir(view) if not name.startswith("__")]:
                    with pytest.raises(AttributeError):
                        setattr(view, name, 7)
            with pytest.raises(ValueError, match="read-only"):
                request.prompt[0] = 9
            assert not hasattr(replicas[0], "submit")
            return 0

    plain_run([make_request(0, [1])], routing=Vandal())


def test_steps_without_duration_end_too() -> None:
    record = plain_run([make_request(n, [n], 5) for n in range(3)], latency=FixedLatency(0.0))
    assert np.all(record.requests["finish_s"] == 0.0)
    assert len(record.steps["step"]) == 5


def test_an_eviction_within_a_pass_does_not_propose_anybody_twice() -> None:
    # Whoever was passed over moves to an ancestor, which post-order visits later.
    workload = RagWorkload(
        num_requests=10,
        tenants=3,
        system_tokens=200,
        documents=10,
        document_tokens=300,
        documents_per_request=3,
        output_tokens=20,
        seed=6,
    )
    cache = CacheConfig(num_pages=160, page_size=16)
    record = plain_run(workload, policy=lambda: DfsWeight("skip"), cache=cache)
    assert set(record.requests["status"]) == {"finished"}
