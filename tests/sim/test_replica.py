"""Skipping quiet steps never shows; nothing is told before it has happened."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from testbed.core.policy import SchedulingPolicy
from tests.core.building import make_request
from tests.core.stepping import GREEDY
from tests.sim.worlds import SCHEDULING, World, same, small_world, worlds


@settings(max_examples=400)
@given(worlds())
def test_skipping_quiet_steps_shows_nowhere(world: World) -> None:
    assert same(world.run(), world.run(skip_quiet_steps=False)) == ""


@settings(max_examples=150)
@given(worlds(replicas=1))
def test_passes_left_out_would_have_admitted_nobody(world: World) -> None:
    ordinary = SCHEDULING[world.policy]

    def watchful() -> SchedulingPolicy:
        policy = ordinary()
        kind = type(policy)
        policy.__class__ = type(kind.__name__, (kind,), {"reacts_to_decoding": True})
        return policy

    assert same(world.run(), world.run(policy=watchful, skip_quiet_steps=False)) == ""


def steps_of(world: World, *columns: str) -> list[tuple[Any, ...]]:
    record = world.run()
    assert same(record, world.run(skip_quiet_steps=False)) == ""
    return list(zip(*(record.steps[name].tolist() for name in columns), strict=True))


def requests_of(world: World, *columns: str) -> list[tuple[Any, ...]]:
    record = world.run()
    assert same(record, world.run(skip_quiet_steps=False)) == ""
    return list(zip(*(record.requests[name].tolist() for name in columns), strict=True))


def test_one_request_step_by_step() -> None:
    world = small_world([make_request(5, [1, 2, 3, 4], 4, arrival=2.0)], num_pages=20)
    columns = ("step", "start_s", "end_s", "decode_rows", "prefill_tokens", "free_pages")
    assert steps_of(world, *columns) == [
        (1, 2.0, 3.0, 0, 4, 16),
        (2, 3.0, 3.5, 1, 0, 15),
        (3, 3.5, 4.0, 1, 0, 14),
        (4, 4.0, 4.5, 1, 0, 13),
    ]
    names = ("request", "arrival_s", "admitted_s", "first_token_s", "finish_s", "decode_spans")
    assert requests_of(world, *names) == [(5, 2.0, 2.0, 3.0, 4.5, "1-4")]


@pytest.mark.parametrize(
    ("arrival", "admitted", "first_token"),
    [(1.0, 1.0, 1.75), (1.75, 2.0, 2.75), (2.0, 2.0, 2.75), (3.5, 3.5, 4.0), (3.75, 3.75, 4.25)],
)
def test_an_arrival_during_a_run_of_decodes(
    arrival: float, admitted: float, first_token: float
) -> None:
    # The first prefills in [0, 1) and decodes in five steps of half a second, until 3.5.
    world = small_world(
        [make_request(0, [1, 2, 3, 4], 6), make_request(1, [9, 8], 1, arrival=arrival)]
    )
    rows = requests_of(world, "request", "admitted_s", "first_token_s")
    assert sorted(rows) == [(0, 0.0, 1.0), (1, admitted, first_token)]


def test_an_arrival_at_the_very_end_of_a_step_is_seen_by_the_next() -> None:
    world = small_world(
        [make_request(0, [1, 2, 3, 4], 1), make_request(1, [1, 2, 3, 4], 1, arrival=1.0)]
    )
    # It arrives before the prompt is in the tree, and is admitted after.
    rows = requests_of(world, "request", "admitted_s", "routed_match_tokens", "cached_tokens")
    assert rows == [(0, 0.0, 0, 0), (1, 1.0, 0, 3)]
    # So it does if the end of the step was known before the arrival was.
    between = make_request(2, [7], 1, arrival=0.5)
    world = replace(world, requests=(world.requests[0], between, world.requests[1]))
    rows = requests_of(world, "request", "routed_match_tokens", "cached_tokens")
    assert sorted(rows) == [(0, 0, 0), (1, 0, 3), (2, 0, 0)]


def test_pages_taken_within_a_run_are_shown_where_they_were_taken() -> None:
    world = small_world(
        [make_request(0, range(50, 54), 1), make_request(1, [1, 2, 3], 8, arrival=5.0)],
        num_pages=4,
        page_size=2,
    )
    world = replace(world, cache=replace(world.cache, num_pages=6))
    # 2 pages stay cached. The second holds 2 (tokens 0..3), takes a third to write token 4, a
    # fourth for token 6 and a fifth for token 8, for which a cached page must go.
    columns = ("step", "free_pages", "evictable_pages", "locked_pages", "evicted_pages")
    assert steps_of(world, *columns) == [
        (1, 4, 0, 0, 0),
        (2, 2, 2, 0, 0),
        (3, 2, 2, 1, 0),
        (4, 1, 2, 1, 0),
        (5, 1, 2, 1, 0),
        (6, 0, 2, 1, 0),
        (7, 0, 2, 1, 0),
        (8, 0, 1, 1, 1),
        (9, 0, 1, 1, 0),
    ]


def test_a_router_meets_what_stepping_would_show() -> None:
    requests = [make_request(0, [1, 2], 40)] + [
        make_request(n, [1, 2, n], 3, arrival=0.1 + 0.7 * n) for n in range(1, 12)
    ]
    world = small_world(requests, num_pages=60, routing="affinity", replicas=2)
    record = world.run()
    assert same(record, world.run(skip_quiet_steps=False)) == ""
    # Once the first prompt is cached, its replica draws all that share it.
    assert set(record.requests["replica"].tolist()) == {0}
    assert np.all(record.requests["routed_match_tokens"][record.requests["request"] > 1] == 2)


def test_a_router_meets_evictions_of_the_run_that_goes_on() -> None:
    requests = [
        make_request(0, [1, 2, 3]),
        make_request(1, [50], 10, arrival=1.0),
        make_request(2, [1, 2, 3, 4], arrival=5.75),
    ]
    # From 1.0 on, the second takes 10 pages in half-second steps: 7 are free, and the prompt's
    # cached 3 leave in the last three steps. At 5.75 none is left, so the idle replica is chosen.
    world = small_world(requests, num_pages=10, routing="affinity", replicas=2)
    rows = requests_of(world, "request", "replica", "routed_match_tokens")
    assert sorted(rows) == [(0, 0, 0), (1, 0, 0), (2, 1, 0)]


def test_a_run_ends_where_memory_does() -> None:
    # Two decodes need 4 more pages to their ends and 3 are free: one of them must go.
    requests = [make_request(n, range(10 * n, 10 * n + 4), 4) for n in range(2)]
    world = small_world(requests, num_pages=13, **GREEDY)
    assert requests_of(world, "request", "preemptions") == [(0, 0), (1, 1)]


def test_a_run_ends_where_a_waiting_match_shrinks() -> None:
    requests = [
        make_request(0, [1, 2, 3, 4, 5, 6]),
        make_request(1, [9, 8], arrival=5.0),
        make_request(2, [50, 51], 16, arrival=10.0),
        make_request(3, [9, 8, 7], arrival=10.1),
        make_request(4, [1, 2, 3, 4, 5, 6, *range(60, 70)], arrival=10.2),
    ]
    # The third prefills until 10.5 and decodes until 18.0. The last one matches best and does not
    # fit; when the last decode but one evicts the fourth of its six cached pages, the fourth
    # request matches as well, and came first.
    world = small_world(requests, num_pages=20, policy="lpm")
    rows = dict(requests_of(world, "request", "admitted_s"))
    assert (rows[3], rows[4]) == (17.0, 18.0)


def test_a_run_lets_the_reserve_decay_as_steps_do() -> None:
    # 11 decode steps after the first of 41 tokens, a tenth of the 29 to come is kept: 3 of 32 free
    # pages. The 0.9 of the start would have kept 27, and left too few for a prompt of 20.
    requests = [make_request(0, [1, 2], 41), make_request(1, range(50, 70), arrival=5.6)]
    world = small_world(
        requests,
        num_pages=45,
        reserve="ratio",
        reserve_ratio=0.9,
        reserve_ratio_floor=0.1,
        reserve_decay_steps=8,
    )
    assert requests_of(world, "request", "admitted_s")[0] == (1, 6.0)
