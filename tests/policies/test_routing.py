"""Routers by load."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from testbed.core.views import RequestView
from testbed.policies.routing.load import LeastLoaded, RoundRobin
from tests.core.building import make_request

REQUEST = RequestView(make_request(0, [1]))


@dataclass(frozen=True)
class Shown:
    """What a router sees of a replica."""

    index: int
    num_waiting: int = 0
    num_running: int = 0

    def peek(self, request: RequestView) -> int:
        raise AssertionError("a router by load does not look at the cache")


def choices(router: Any, replicas: tuple[Shown, ...], count: int) -> list[int]:
    return [router.choose(REQUEST, replicas, 0.0) for _ in range(count)]


def test_round_robin_takes_turns_whatever_the_load() -> None:
    replicas = (Shown(0, 9, 9), Shown(1), Shown(2))
    assert choices(RoundRobin(), replicas, 7) == [0, 1, 2, 0, 1, 2, 0]
    assert choices(RoundRobin(), replicas[:1], 3) == [0, 0, 0]


def test_two_routers_take_turns_of_their_own() -> None:
    replicas = (Shown(0), Shown(1))
    first, second = RoundRobin(), RoundRobin()
    assert choices(first, replicas, 1) + choices(second, replicas, 1) == [0, 0]


def test_least_loaded_counts_waiting_and_running_and_breaks_ties_by_index() -> None:
    assert choices(LeastLoaded(), (Shown(0, 2, 1), Shown(1, 0, 2), Shown(2, 3, 0)), 1) == [1]
    assert choices(LeastLoaded(), (Shown(0, 2, 1), Shown(1, 1, 1), Shown(2, 0, 2)), 2) == [1, 1]
