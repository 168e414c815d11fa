"""DLPM: deficits by hand, every pick against a naive accountant, and the limits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.core.views import SchedulerView, SequenceView
from testbed.policies.scheduling.cache_aware import Lpm
from testbed.policies.scheduling.fair import Dlpm
from tests.core.stepping import GREEDY, Stepper
from tests.policies.auditing import Audited
from tests.sim.worlds import World, same, worlds


def served(stepper: Stepper) -> list[int]:
    return [id for step in stepper.run() for id in step.finished]


def test_deficits_by_hand() -> None:
    policy = Dlpm(quantum=10)
    stepper = Stepper(policy=policy, max_running=1)
    for number in range(3):
        stepper.add(range(10 * number, 10 * number + 4), output=2, client="a")
    stepper.add(range(100, 104), output=2, client="b")
    # Each costs 4 + 2 * 2. Refill: a 10, b 10. a: 2, then -6; b: 2; then nobody of those who wait
    # has credit: a gets 10 once, b has some left.
    assert served(stepper) == [0, 1, 3, 2]
    assert (policy.deficit("a"), policy.deficit("b")) == (-6 + 10 - 8, 2)
    assert policy.refill_rounds == 2


def test_cached_tokens_are_free() -> None:
    policy = Dlpm(quantum=100)
    stepper = Stepper(policy=policy, max_running=1)
    stepper.add(range(20), client="a")
    stepper.add([*range(20), 99], client="b")
    stepper.run()
    assert (policy.deficit("a"), policy.deficit("b")) == (100 - 20 - 2, 100 - 1 - 2)


def test_prices_multiply() -> None:
    policy = Dlpm(quantum=100, extend_weight=3, output_weight=5)
    stepper = Stepper(policy=policy)
    stepper.add(range(4), output=2, client="a")
    stepper.run()
    assert policy.deficit("a") == 100 - 3 * 4 - 5 * 2


def test_a_debt_takes_the_rounds_it_needs_and_credit_is_never_refilled() -> None:
    policy = Dlpm(quantum=3)
    stepper = Stepper(policy=policy, max_running=1)
    stepper.add(range(10), client="a")
    stepper.run()
    # One round for a (3), then 10 + 2 are charged.
    assert (policy.deficit("a"), policy.refill_rounds) == (-9, 1)
    stepper.add(range(20, 22), client="b")
    stepper.add(range(30, 32), client="a")
    # Both wait. One round gives b credit and a 3 of its debt.
    stepper.step()
    assert (policy.deficit("a"), policy.deficit("b"), policy.refill_rounds) == (-6, 3 - 4, 2)
    stepper.step()
    # Only a waits: three rounds bring it from -6 to 3; b, at -1, is known and gets one of them.
    assert (policy.deficit("a"), policy.deficit("b"), policy.refill_rounds) == (3 - 4, 2, 5)


def test_longer_matches_go_first_among_those_with_credit() -> None:
    policy = Dlpm(quantum=4)
    stepper = Stepper(policy=policy, max_running=1)
    stepper.add(range(10), client="a")
    stepper.run()
    stepper.add([50, 51], client="b")
    stepper.add([*range(9), 90], client="a")
    stepper.add([*range(5), 91], client="b")
    # a owes 8 and is passed over; of b's two, the better match goes first. It costs 1 + 2 of 4.
    assert served(stepper) == [3, 1, 2]


def test_a_preempted_sequence_is_not_charged_again() -> None:
    policy = Dlpm(quantum=1000)
    stepper = Stepper(num_pages=8, policy=policy, **GREEDY)
    stepper.add([1, 2, 3], output=4, client="a")
    victim = stepper.add([11, 12, 13], output=3, client="b")
    stepper.run()
    assert victim.num_preemptions == 1
    assert (policy.deficit("a"), policy.deficit("b")) == (1000 - 3 - 8, 1000 - 3 - 6)


@settings(max_examples=60)
@given(worlds(replicas=1))
def test_a_large_quantum_is_lpm(world: World) -> None:
    # Among clients that were refilled together; one that comes later waits for their credit.
    together = tuple(replace(request, arrival=0.0) for request in world.requests)
    world = replace(world, requests=together)
    lpm = world.run(policy=Lpm)
    dlpm = world.run(policy=lambda: Dlpm(quantum=10**9))
    assert same(lpm, dlpm) == ""


def test_a_newcomer_waits_until_the_others_credit_is_spent() -> None:
    policy = Dlpm(quantum=20)
    stepper = Stepper(policy=policy, max_running=1)
    for number in range(4):
        stepper.add(range(10 * number, 10 * number + 6), client="a")
    stepper.step()
    stepper.add([90], client="b")
    # a has 20 - 8 left, then 4, then -4: two more go before b gets its first credit.
    assert served(stepper) == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"quantum": 0}, "quantum=0, extend_weight=1, output_weight=2"),
        ({"extend_weight": -1}, "extend_weight=-1"),
        ({"output_weight": -1}, "output_weight=-1"),
    ],
)
def test_parameters_are_checked(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Dlpm(**parameters)


class Accountant(Audited):
    """Keeps every deficit by the letter of the rules, refilling round by round."""

    def __init__(self, quantum: int) -> None:
        super().__init__(Dlpm(quantum), self.pick)
        self.quantum = quantum
        self.deficits: dict[str, int] = {}

    def pick(self, view: SchedulerView, left: list[SequenceView]) -> SequenceView:
        while not any(self.deficits[s.client] > 0 for s in left):
            for client, deficit in self.deficits.items():
                if deficit <= 0:
                    self.deficits[client] += self.quantum
        assert isinstance(self.policy, Dlpm)
        for client, deficit in self.deficits.items():
            assert self.policy.deficit(client) == deficit
        return min(
            (s for s in left if self.deficits[s.client] > 0),
            key=lambda s: (-view.cache.peek(s.tokens, s.namespace), s.index),
        )

    def on_arrival(self, sequence: SequenceView) -> Any:
        self.deficits.setdefault(sequence.client, 0)
        return super().on_arrival(sequence)

    def on_admit(self, sequence: SequenceView, cached: int, extend: int) -> None:
        if not sequence.num_preemptions:
            self.deficits[sequence.client] -= extend
        super().on_admit(sequence, cached, extend)

    def on_tokens(self, sequence: SequenceView, count: int) -> None:
        self.deficits[sequence.client] -= 2 * count
        super().on_tokens(sequence, count)


@settings(max_examples=200)
@given(worlds(replicas=1), st.sampled_from([1, 3, 7, 40]))
def test_every_pick_is_the_accountant_s(world: World, quantum: int) -> None:
    world.run(policy=lambda: Accountant(quantum))
