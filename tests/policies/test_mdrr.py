"""Deficit round robin: turns by hand, the artifact's loop as a second accountant."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.core.views import SchedulerView, SequenceView
from testbed.policies.scheduling.fair import Mdrr
from tests.core.stepping import Stepper
from tests.policies.auditing import Audited
from tests.sim.worlds import World, worlds


def served(stepper: Stepper) -> list[int]:
    return [id for step in stepper.run() for id in step.finished]


def test_turns_by_hand() -> None:
    policy = Mdrr(quantum=10)
    stepper = Stepper(policy=policy, max_running=1)
    for id, client in enumerate("aaabb"):
        stepper.add(range(10 * id, 10 * id + 4), output=2, client=client)
    # Each costs 4 + 2 * 2 = 8. a: 10, 2, -6, so b: 10, 2, -6, then a again: 4, -4.
    assert served(stepper) == [0, 1, 3, 4, 2]
    assert policy.deficit("a") == 20 - 24


def test_a_twentieth_of_the_pool_is_the_default() -> None:
    policy = Mdrr()
    stepper = Stepper(num_pages=100, page_size=2, policy=policy)
    stepper.add([1, 2], output=1, client="a")
    stepper.run()
    assert policy.deficit("a") == 10 - 2 - 2


def test_weights_and_prices() -> None:
    policy = Mdrr(quantum=100, prompt_weight=3.0, output_weight=5.0)
    stepper = Stepper(policy=policy)
    stepper.add(range(4), output=2, client="a", weight=2.0)
    stepper.run()
    assert policy.deficit("a") == 100 - (3 * 4 + 5 * 2) / 2


def test_a_client_in_debt_gets_its_quantum_though_it_asks_for_nothing() -> None:
    policy = Mdrr(quantum=4)
    stepper = Stepper(policy=policy, max_running=1)
    stepper.add(range(10), client="a")
    stepper.run()
    assert policy.deficit("a") == 4 - 10 - 2
    for number in range(4):
        stepper.add([50 + number], client="b")
    stepper.run()
    # Each of b's costs 3. b: 4, 1, -2, and is passed over; a: -4. b: 2, -1, passed over; a: 0.
    # b: 3, 0.
    assert (policy.deficit("a"), policy.deficit("b")) == (0, 0)


@pytest.mark.parametrize("weight", [1e-9, 1.0, 1e9])
def test_a_large_debt_takes_no_longer_than_a_small_one(weight: float) -> None:
    policy = Mdrr(quantum=1, prompt_weight=1e9, output_weight=0.0)
    stepper = Stepper(policy=policy, max_running=1)
    for id in range(3):
        stepper.add(range(10 * id, 10 * id + 4), output=1, client="a", weight=weight)
    stepper.add([99], output=1, client="b", weight=weight)
    # a is served with a credit of 1, then b; a's debt is then four times b's, but b asks no more.
    assert served(stepper) == [0, 3, 1, 2]
    # After two debts of 4e9 / weight were worked off, the third is left.
    assert policy.deficit("a") == pytest.approx(-4e9 / weight, rel=1e-9, abs=3)


def test_whoever_is_nearest_to_credit_goes_first() -> None:
    policy = Mdrr(quantum=1, prompt_weight=1000.0, output_weight=0.0)
    stepper = Stepper(policy=policy, max_running=1)
    for id, (client, length) in enumerate([("a", 3), ("b", 2), ("a", 1), ("b", 1), ("b", 1)]):
        stepper.add(range(10 * id, 10 * id + length), output=1, client=client)
    # a: 1 - 3000, b: 1 - 2000. After 2000 rounds b has 1 and a -999; b pays, and both have -999,
    # a's turn being the next.
    assert served(stepper) == [0, 1, 3, 2, 4]


class Loop(Audited):
    """The artifact's loop as it is written, in terms of the outcomes it would see."""

    def __init__(self, quantum: int) -> None:
        super().__init__(Mdrr(quantum), self.pick)
        self.quantum = quantum
        self.deficits: dict[str, float] = {}
        self.queues: dict[str, list[int]] = {}
        self.active: list[str] = []
        self.last_oom: str | None = None
        self.current: str | None = None

    def candidates(self, view: SchedulerView) -> Any:
        self.current = None
        try:
            yield from super().candidates(view)
        finally:
            # No slot is left, which the artifact would see at its next attempt.
            client = self.current
            if client is not None and (self.queues[client] or self.deficits[client] < 0):
                self.active.insert(0, client)
                self.last_oom = client

    def pick(self, view: SchedulerView, left: list[SequenceView]) -> SequenceView:
        by_index = {s.index: s for s in left}
        while True:
            if self.current is not None:
                client = self.current
                if self.deficits[client] > 0 and self.queues[client]:
                    return by_index[self.queues[client][0]]
                if self.queues[client] or self.deficits[client] < 0:
                    self.active.append(client)
                self.current = None
            client = self.active.pop(0)
            if client == self.last_oom and self.deficits[client] < 0:
                self.active.append(client)
                self.last_oom = None
                continue
            if self.deficits[client] <= 0:
                self.deficits[client] += self.quantum
            self.current = client

    def on_arrival(self, sequence: SequenceView) -> Any:
        client = sequence.client
        self.deficits.setdefault(client, 0)
        self.queues.setdefault(client, []).append(sequence.index)
        if client not in self.active:
            self.active.append(client)
        return super().on_arrival(sequence)

    def on_preempt(self, sequence: SequenceView) -> None:
        self.queues[sequence.client].insert(0, sequence.index)
        if sequence.client not in self.active:
            self.active.append(sequence.client)
        super().on_preempt(sequence)

    def on_admit(self, sequence: SequenceView, cached: int, extend: int) -> None:
        self.queues[sequence.client].remove(sequence.index)
        if not sequence.num_preemptions:
            self.deficits[sequence.client] -= sequence.num_prompt_tokens / sequence.weight
        super().on_admit(sequence, cached, extend)

    def on_tokens(self, sequence: SequenceView, count: int) -> None:
        self.deficits[sequence.client] -= 2.0 * count / sequence.weight
        super().on_tokens(sequence, count)


@settings(max_examples=200)
@given(worlds(replicas=1), st.sampled_from([1, 5, 30]))
def test_every_proposal_is_the_loop_s(world: World, quantum: int) -> None:
    world.run(policy=lambda: Loop(quantum))


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"quantum": -1}, "quantum=-1: at least 1, or 0 for pool / 20"),
        ({"output_weight": -1.0}, r"output_weight=-1\.0: numbers from 0 to 1e\+09"),
        ({"output_weight": float("nan")}, r"output_weight=nan: numbers from 0 to 1e\+09"),
        ({"prompt_weight": 1e308}, r"prompt_weight=1e\+308, .*: numbers from 0 to 1e\+09"),
    ],
)
def test_parameters_are_checked(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Mdrr(**parameters)


def test_an_absurd_client_weight_is_refused() -> None:
    with pytest.raises(ValueError, match=r"request 0: weight is 1e-10; mdrr needs 1e-09 to 1e\+09"):
        Stepper(policy=Mdrr()).add([1], weight=1e-10)
