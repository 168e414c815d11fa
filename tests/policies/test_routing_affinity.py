"""Routers by hash: who owns a key, and where an owner's overflow goes."""

from __future__ import annotations

from collections import Counter

import pytest

from testbed.policies.routing.affinity import HashRing, PrefixHash, SessionAffinity
from tests.policies.fleet import Fleet


def test_a_ring_spreads_keys_and_moves_few_when_it_grows() -> None:
    small, large = HashRing(4, 160), HashRing(5, 160)
    keys = [str(n).encode() for n in range(5000)]
    owners = [small.owner(key) for key in keys]
    assert all(abs(count - 1250) < 400 for count in Counter(owners).values())
    moved = [key for key, owner in zip(keys, owners, strict=True) if large.owner(key) != owner]
    # Whatever moves, moves to the newcomer.
    assert {large.owner(key) for key in moved} == {4}
    assert abs(len(moved) - 1000) < 400


def test_a_walk_meets_everybody_once_and_the_owner_first() -> None:
    ring = HashRing(6, 3)
    for n in range(40):
        walk = list(ring.walk(str(n).encode()))
        assert sorted(walk) == list(range(6))
        assert walk[0] == ring.owner(str(n).encode())


def test_a_session_stays_and_a_client_without_one_does_too() -> None:
    fleet = Fleet(SessionAffinity(), 8)
    sessions = {name: fleet.send([9], program=name) for name in "abcdefgh"}
    assert len(set(sessions.values())) > 2
    assert {name: fleet.send([len(name)], program=name) for name in sessions} == sessions
    assert len({fleet.send([n], client="somebody") for n in range(5)}) == 1


def test_prefixes_are_grouped_by_their_first_tokens_alone() -> None:
    fleet = Fleet(PrefixHash(tokens=3, load_factor=1000), 8)
    home = fleet.send([1, 2, 3, 4])
    assert fleet.send([1, 2, 3, 5, 6]) == home
    elsewhere = {fleet.send([1, 2, n]) for n in range(4, 40)}
    assert len(elsewhere) > 3
    assert len({fleet.send([1, 2, 3], namespace=str(n)) for n in range(20)}) > 1


def test_the_bound_is_on_the_average_with_the_request_to_come() -> None:
    fleet = Fleet(PrefixHash(load_factor=1.5), 2)
    home = fleet.send()
    # In flight 1 + 0: the bound is 1.5 * (1 + 1) / 2 = 1.5.
    assert fleet.send() == home
    # 2 + 0: the bound is 1.5 * 3 / 2 = 2.25.
    assert fleet.send() == home
    # 3 + 0: the bound is 1.5 * 4 / 2 = 3, which 3 does not exceed.
    assert fleet.send() == home
    # 4 + 0: the bound is 1.5 * 5 / 2 = 3.75.
    assert fleet.send() == 1 - home
    # 4 + 1: the bound is 1.5 * 6 / 2 = 4.5.
    assert fleet.send() == home
    for number in range(4):
        fleet.finish(number)
    assert fleet.send() == home


def test_overflow_goes_to_the_least_loaded_or_along_the_ring() -> None:
    prompt = [5, 5]
    key = b"/" + bytes([5, 0, 0, 0]) * 2
    order = list(HashRing(4, 160).walk(key))
    walking = Fleet(PrefixHash(load_factor=1.0, overflow="walk"), 4)
    # Bounds of (all + 1) / 4: 0.25, 0.5, 0.75, and 1, which the owner's one request is within.
    assert [walking.send(prompt) for _ in range(4)] == [order[0], order[1], order[2], order[0]]
    jumping = Fleet(PrefixHash(load_factor=1.0), 4)
    idle = [replica for replica in range(4) if replica != order[0]]
    assert [jumping.send(prompt) for _ in range(4)] == [order[0], idle[0], idle[1], order[0]]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tokens": 0}, "tokens=0: at least 1"),
        ({"load_factor": 0.9}, "load_factor=0.9: at least 1"),
        ({"overflow": "drop"}, "overflow='drop': one of least_loaded, walk"),
        ({"points": 0}, "points=0: at least 1"),
        ({"points": 10**18}, "points=1000000000000000000: at least 1 and at most 100000"),
    ],
)
def test_bad_parameters_are_named(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PrefixHash(**fields)  # type: ignore[arg-type]
    if "points" in fields:
        with pytest.raises(ValueError, match=message):
            SessionAffinity(**fields)  # type: ignore[arg-type]
