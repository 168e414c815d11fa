"""Preble's E2 on a fleet where a second stands for each token of prefill."""

from __future__ import annotations

from typing import Any

import pytest

from testbed.policies.routing.preble import PrebleE2
from tests.policies.fleet import Fleet


def prompt(prefix: int, length: int, own: int, rest: int) -> list[int]:
    """`length` tokens that all prompts of the prefix share, and `rest` of its own."""
    return [prefix] * length + [own] * rest


def loads(fleet: Fleet) -> list[float]:
    router: Any = fleet.router
    return [router._load(replica) for replica in range(len(fleet.replicas))]


def idle(fleet: Fleet, number: int) -> None:
    """The request leaves without an output, so that no means move and no decode load stays."""
    fleet.finish(number, output_tokens=0)


def test_it_exploits_when_more_is_known_than_new_and_explores_else() -> None:
    fleet = Fleet(PrebleE2(), 3)
    assert fleet.send(prompt(1, 60, 1, 0)) == 0
    # 60 known, 60 new: explore, and replica 0 is the heaviest.
    assert fleet.send(prompt(1, 60, 2, 60)) == 1
    # 60 known, 59 new: exploit, among the two that have the prefix.
    for number in (0, 1):
        idle(fleet, number)
    assert fleet.send(prompt(1, 60, 3, 59)) == 0
    # 20 of the prefix and nothing new: known too.
    assert fleet.send([1] * 20) in (0, 1)
    # Nothing known at all.
    assert fleet.send([7] * 10) == 2


def test_load_is_misses_times_prefill_time_shared_by_the_replicas_and_decoding() -> None:
    fleet = Fleet(PrebleE2(), 2)
    fleet.send([1] * 60)
    # The artifact's 45 output tokens at 0.15 s, while it is in flight.
    assert loads(fleet) == pytest.approx([60 + 6.75, 0])
    idle(fleet, 0)
    assert loads(fleet) == pytest.approx([60, 0])
    # A hit adds nothing.
    fleet.send([1] * 60)
    idle(fleet, 1)
    assert loads(fleet) == pytest.approx([60, 0])
    # 60 known, 61 new: a miss of the new part, which is longer than all before it, on replica 1;
    # the prefix is on both replicas now, so each bears half.
    assert fleet.send(prompt(1, 60, 2, 61)) == 1
    idle(fleet, 2)
    assert loads(fleet) == pytest.approx([30, 30 + 61])


def test_the_window_forgets() -> None:
    fleet = Fleet(PrebleE2(window=100.0), 2)
    router: Any = fleet.router
    fleet.send([1] * 60, now=0.0)
    idle(fleet, 0)
    assert fleet.send([1] * 60, now=99.0) == 0
    idle(fleet, 1)
    # The miss is 100 s old; the hit is not, so the prefix is still known.
    assert fleet.send([1] * 60, now=100.0) == 0
    assert loads(fleet) == pytest.approx([6.75, 0])
    idle(fleet, 2)
    fleet.send([9], now=250.0)
    assert router._tree.num_nodes == 1
    assert [node.tokens.tolist() for node, _ in router._tree.match(fleet._requests[3].prompt)] == [
        [9]
    ]


def test_means_follow_what_was_seen() -> None:
    fleet = Fleet(PrebleE2(), 1)
    fleet.send([1])
    fleet.start(0, now=2.0)
    fleet.finish(0, output_tokens=5, now=3.0)
    router: Any = fleet.router
    # Means of the artifact's first guess and of one observation: 5 tokens, 1 s for 4 of them.
    assert router._output.value == pytest.approx((45 + 5) / 2)
    assert router._tpot.value == pytest.approx((0.15 + 0.25) / 2)


def warm(fleet: Fleet, count: int) -> int:
    """Route hits of the first prompt, which add no load; the number of the next request."""
    for _ in range(count):
        fleet.send([1] * 10)
        idle(fleet, len(fleet._requests) - 1)
    return len(fleet._requests)


def test_rebalancing_moves_the_cheapest_nodes_and_what_is_below_them() -> None:
    fleet = Fleet(PrebleE2(), 2)
    router: Any = fleet.router
    fleet.send([1] * 10)
    idle(fleet, 0)
    fleet.send([2] * 30)
    idle(fleet, 1)
    assert loads(fleet) == pytest.approx([10, 30])
    # All that is known of [3...] goes to replica 0, which becomes the heaviest.
    fleet.send([3] * 40)
    idle(fleet, 2)
    fleet.send(prompt(3, 40, 4, 5))
    idle(fleet, 3)
    assert loads(fleet) == pytest.approx([50, 30])
    warm(fleet, 95)
    # 99 requests; at the hundredth the ratio 50 / 30 exceeds 1.5. Moving [1...], 10 s, makes it
    # 40 to 40.
    assert fleet.send([2] * 30) == 1
    idle(fleet, 99)
    assert loads(fleet) == pytest.approx([40, 40])
    assert fleet.send([1] * 10) == 1
    assert router._weighing[0].keys().isdisjoint(router._weighing[1].keys())


def hot_fleet(slower: bool) -> Fleet:
    """Replica 0 has one hot node; in the second window its TTFT doubles, or does not."""
    fleet = Fleet(PrebleE2(window=1000.0), 2)
    fleet.send([1] * 50)
    fleet.start(0, now=10.0)
    idle(fleet, 0)
    warm(fleet, 98)
    fleet.send([1] * 50, now=1001.0)
    # The miss at 0 has left the window, so book another one for the load.
    router: Any = fleet.router
    important = router._recent[-1].important
    important.state.misses += 1
    router._weigh(important)
    fleet.start(99, now=1001.0 + (21.0 if slower else 19.0))
    idle(fleet, 99)
    for _ in range(2):
        fleet.send([1] * 50, now=1002.0)
        idle(fleet, len(fleet._requests) - 1)
    return fleet


@pytest.mark.parametrize("slower", [True, False])
def test_a_hot_node_is_replicated_when_its_ttft_has_doubled(slower: bool) -> None:
    router: Any = hot_fleet(slower).router
    node = router._recent[-1].important
    assert list(node.state.replicas) == ([0, 1] if slower else [0])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"window": 0.0}, "window=0.0: seconds above 0"),
        ({"rebalance_ratio": 0.5}, "rebalance_ratio=0.5: at least 1"),
    ],
)
def test_bad_parameters_are_named(fields: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PrebleE2(**fields)
