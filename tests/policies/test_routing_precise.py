"""Routers that weigh what the caches hold against load: scores and costs by hand."""

from __future__ import annotations

from collections import Counter
from math import exp
from typing import Any

import pytest

from testbed.policies.routing.d2lpm import D2lpm
from testbed.policies.routing.precise import Dynamo, PrecisePrefix
from tests.policies.fleet import Fleet, Shown

PROMPT = range(100)


def test_precise_scores_by_hand() -> None:
    # prefix 2 * 0.5, memory 1 - 0.9, queue (4 - 4) / 4: 1.1
    # prefix 0, memory 1, queue 1: 2
    # prefix 2 * 1, memory 1 - 0.5, queue (4 - 3) / 4: 2.75
    replicas = [Shown(0, 4, cached=50, kv_usage=0.9), Shown(1, cached=0), Shown(2, 3, 1, 100, 0.5)]
    assert Fleet(PrecisePrefix(), replicas).send(PROMPT) == 2
    assert Fleet(PrecisePrefix(prefix_weight=1.0), replicas).send(PROMPT) == 1
    assert Fleet(PrecisePrefix(1.0, 0.0, 0.0), replicas).send(PROMPT) == 2
    # 2 * 0.5 + 0.1 against 2 * 0.25 + 0.7 and an equal queue each.
    equal = [Shown(0, 4, cached=50, kv_usage=0.9), Shown(1, 4, cached=25, kv_usage=0.3)]
    assert Fleet(PrecisePrefix(), equal).send(PROMPT) == 1


def test_precise_counts_whole_pages_of_the_prompt() -> None:
    # A prompt of 100 tokens has six whole pages of 16, all of them matched: the score is 2 * 1,
    # against 0 + 1.9 of memory (and queues alike).
    full = Shown(0, cached=96, kv_usage=1.0, page_size=16)
    empty = Shown(1, cached=0, kv_usage=0.0, page_size=16)
    assert Fleet(PrecisePrefix(2.0, 1.9, 1.0), [full, empty]).send(PROMPT) == 0
    assert Fleet(PrecisePrefix(2.0, 2.1, 1.0), [full, empty]).send(PROMPT) == 1
    assert Fleet(PrecisePrefix(), [full, empty]).send(range(3)) == 1


def test_ties_are_drawn_by_seed() -> None:
    for router in (PrecisePrefix, Dynamo):
        fleet = Fleet(router(), [Shown(0, cached=0), Shown(1, cached=0)])
        drawn = set()
        for number in range(20):
            drawn.add(fleet.send([1]))
            fleet.start(number) if router is Dynamo else None
            fleet.finish(number)
        assert drawn == {0, 1}


def test_dynamo_costs_by_hand() -> None:
    fleet = Fleet(Dynamo(), [Shown(n, cached=0, page_size=10) for n in range(2)])
    first = fleet.send(range(100))
    other = 1 - first
    # Prefill (100 + 50) / 10 + decode 10 against 50 / 10.
    assert fleet.send(range(50)) == other
    # 100 + 40 and 10 blocks against 50 + 40 and 5 blocks.
    assert fleet.send(range(40)) == other
    # Equal: (100 + 5) / 10 + 10 against (90 + 5) / 10 + 9, the lighter still.
    assert fleet.send(range(5)) == other
    # The long prefill is over: 5 / 10 + 10 against (95 + 5) / 10 + 10 (5 tokens are one block).
    fleet.start(0)
    assert fleet.send(range(5)) == first


def test_dynamos_overlap_weight_trades_prefill_for_decode() -> None:
    def sent(weight: float) -> tuple[Fleet, int]:
        shown = [Shown(n, cached=0, page_size=10) for n in range(2)]
        fleet = Fleet(Dynamo(overlap_weight=weight), shown)
        busy = fleet.send(range(60))
        fleet.start(0)
        shown[busy].cached = 40
        return fleet, busy

    # 50 tokens, of which the busy one has 40 and 6 blocks: w * 1 + 6 against w * 5.
    fleet, busy = sent(1.0)
    assert fleet.send(range(50)) == 1 - busy
    fleet, busy = sent(2.0)
    assert fleet.send(range(50)) == busy
    fleet, busy = sent(1.0)
    fleet.finish(0)
    assert fleet.send(range(50)) == busy


def test_a_refused_request_gives_dynamo_everything_back() -> None:
    fleet = Fleet(Dynamo(), [Shown(n, cached=0) for n in range(2)])
    fleet.send(PROMPT)
    fleet.finish(0, output_tokens=0)
    router: Any = fleet.router
    assert (router._prefill_tokens, router._decode_blocks, router._uncached) == ([0, 0], [0, 0], {})


def test_dynamos_temperature_draws_from_a_softmax_of_costs_over_their_range() -> None:
    # Pages of 10: costs 10, 5 and 0, over their range 1, 0.5 and 0.
    shown = [Shown(n, cached=50 * n, page_size=10) for n in range(3)]
    fleet = Fleet(Dynamo(temperature=0.5), shown)
    drawn = Counter()
    for number in range(3000):
        drawn[fleet.send(PROMPT)] += 1
        fleet.start(number)
        fleet.finish(number)
    weights = [exp(-1.0 / 0.5), exp(-0.5 / 0.5), 1.0]
    for replica, weight in enumerate(weights):
        # Four standard deviations of a binomial of 3,000 draws are at most 110.
        assert abs(drawn[replica] - 3000 * weight / sum(weights)) < 110
    assert Fleet(Dynamo(), shown).send(PROMPT) == 2


def test_d2lpm_follows_the_match_while_credit_lasts() -> None:
    shown = [Shown(0, cached=80), Shown(1, cached=20), Shown(2, cached=0)]
    fleet = Fleet(D2lpm(quantum=50, output_weight=2), shown)
    router: Any = fleet.router
    # Nobody has credit: everybody gets 50. 20 tokens are computed on each visit to replica 0.
    assert [fleet.send(PROMPT) for _ in range(3)] == [0, 0, 0]
    assert router.deficits("default") == (-10, 50, 50)
    # Then the next longest match with credit, 80 tokens; then the last.
    assert fleet.send(PROMPT) == 1
    assert router.deficits("default") == (-10, -30, 50)
    assert fleet.send(PROMPT) == 2
    assert router.deficits("default") == (-10, -30, -50)
    # One round makes replicas 0 and 1 positive.
    assert fleet.send(PROMPT) == 0
    assert router.deficits("default") == (40 - 20, 20, 0)
    fleet.finish(0, output_tokens=30)
    assert router.deficits("default") == (20 - 60, 20, 0)
    assert fleet.send(PROMPT) == 1


def test_d2lpm_refills_as_often_as_it_takes_and_each_client_on_its_own() -> None:
    fleet = Fleet(D2lpm(quantum=30), [Shown(0, cached=0), Shown(1, cached=0)])
    router: Any = fleet.router
    assert [fleet.send(PROMPT), fleet.send(PROMPT)] == [0, 1]
    assert router.deficits("default") == (-70, -70)
    assert fleet.send(PROMPT, client="other") == 0
    assert router.deficits("other") == (-70, 30)
    fleet.finish(2, output_tokens=15)
    assert router.deficits("other") == (-100, 30)
    # Three rounds of 30 reach 20; both are equal, and so are the requests in flight.
    assert fleet.send(PROMPT) == 0
    assert router.deficits("default") == (-80, 20)


@pytest.mark.parametrize(
    ("router", "fields", "message"),
    [
        (PrecisePrefix, {"queue_weight": -1.0}, "queue_weight=-1.0: a finite number of at least 0"),
        (PrecisePrefix, {"prefix_weight": float("nan")}, "prefix_weight=nan"),
        (Dynamo, {"temperature": -0.1}, "temperature=-0.1: a finite number of at least 0"),
        (Dynamo, {"overlap_weight": float("inf")}, "overlap_weight=inf"),
        (D2lpm, {"quantum": 0}, "quantum=0, extend_weight=1, output_weight=2: at least 1, 0 and 0"),
    ],
)
def test_bad_parameters_are_named(router: Any, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        router(**fields)
