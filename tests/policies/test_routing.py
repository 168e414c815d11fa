"""Routers by load, and what all routers have in common."""

from __future__ import annotations

from collections import Counter

import pytest

from testbed.policies import registry
from testbed.policies.routing.load import LeastLoaded, PowerOfTwo, RandomChoice, RoundRobin
from tests.core.building import make_request
from tests.policies.fleet import Fleet, Shown
from tests.sim.worlds import plain_run

ROUTERS = registry.names("routing")
WITH_AFFINITY = sorted(set(ROUTERS) - {"round_robin", "random", "power_of_two", "least_loaded"})


def test_round_robin_takes_turns_whatever_the_load() -> None:
    fleet = Fleet(RoundRobin(), [Shown(0, 9, 9), Shown(1), Shown(2)])
    assert [fleet.send() for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]
    alone = Fleet(RoundRobin(), 1)
    assert [alone.send() for _ in range(3)] == [0, 0, 0]


def test_two_routers_take_turns_of_their_own() -> None:
    assert Fleet(RoundRobin(), 2).send() + Fleet(RoundRobin(), 2).send() == 0


def test_least_loaded_counts_waiting_and_running_and_breaks_ties_by_index() -> None:
    assert Fleet(LeastLoaded(), [Shown(0, 2, 1), Shown(1, 0, 2), Shown(2, 3, 0)]).send() == 1
    fleet = Fleet(LeastLoaded(), [Shown(0, 2, 1), Shown(1, 1, 1), Shown(2, 0, 2)])
    assert [fleet.send() for _ in range(2)] == [1, 1]


def test_random_reaches_everybody_and_each_seed_its_own_way() -> None:
    fleet = Fleet(RandomChoice(), 4)
    drawn = [fleet.send() for _ in range(4000)]
    # Four standard deviations of a binomial of 4,000 draws at 1/4 are 110.
    assert all(abs(count - 1000) < 110 for count in Counter(drawn).values())
    again, other = Fleet(RandomChoice(), 4), Fleet(RandomChoice(seed=1), 4)
    assert [again.send() for _ in range(50)] == drawn[:50]
    assert [other.send() for _ in range(50)] != drawn[:50]


def test_power_of_two_takes_the_lighter_of_two() -> None:
    # The heaviest loses every pair; of the others, each pair has a winner.
    fleet = Fleet(PowerOfTwo(), [Shown(0, 3, 3), Shown(1, 0, 5), Shown(2, 1, 1), Shown(3)])
    drawn = Counter(fleet.send() for _ in range(1200))
    assert drawn[0] == 0
    # Of six equally likely pairs replica 3 is in three, replica 2 wins two, replica 1 one.
    for replica, pairs in ((3, 3), (2, 2), (1, 1)):
        assert abs(drawn[replica] - 200 * pairs) < 70
    assert Fleet(PowerOfTwo(), 1).send() == 0


@pytest.mark.parametrize("name", WITH_AFFINITY)
def test_the_same_prompt_twice_at_low_load_meets_the_same_replica(name: str) -> None:
    """Other prompts come in between; the replicas are idle each time (a request takes 41 s)."""
    letters = [1, 2, 3, 1, 2, 3, 3, 1]
    requests = [
        make_request(n, [letter] * 40, 2, arrival=50.0 * n, program=f"s{letter}")
        for n, letter in enumerate(letters)
    ]
    record = plain_run(requests, routing=registry.routing(name), replicas=4)
    by_request = dict(
        zip(record.requests["request"].tolist(), record.requests["replica"].tolist(), strict=True)
    )
    homes = {letter: by_request[letters.index(letter)] for letter in (1, 2, 3)}
    assert [by_request[n] for n in range(len(letters))] == [homes[letter] for letter in letters]


@pytest.mark.parametrize("name", ROUTERS)
def test_a_run_comes_out_the_same_again(name: str) -> None:
    requests = [make_request(n, [n % 3] * 20 + [n], 3, arrival=2.0 * n) for n in range(60)]
    runs = [plain_run(requests, routing=registry.routing(name), replicas=5) for _ in range(2)]
    assert runs[0].requests["replica"].tolist() == runs[1].requests["replica"].tolist()
