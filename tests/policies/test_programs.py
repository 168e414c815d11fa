"""Justitia: virtual finishes by hand, against a step-by-step ideal, and whole programs first."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.core.views import SchedulerView, SequenceView
from testbed.policies.scheduling.programs import Justitia
from tests.core.stepping import Stepper
from tests.policies.auditing import Audited
from tests.policies.hinted import hinted_worlds
from tests.sim.worlds import World


def served(stepper: Stepper) -> list[int]:
    return [id for step in stepper.run() for id in step.finished]


def finish(stepper: Stepper, id: int) -> float:
    assert isinstance(stepper.policy, Justitia)
    return stepper.policy.virtual_finish(stepper.sequences[id].view)


def test_the_program_that_fair_sharing_finishes_first_gets_all() -> None:
    stepper = Stepper(policy=Justitia(), max_running=1)
    # A call of 4 + 2 tokens costs 4 * 2 + 2 = 10 token-steps, one of 4 + 4 costs 24.
    for id, (program, output) in enumerate([("a", 2), ("b", 4), ("a", 2), ("a", 2), (None, 4)]):
        stepper.add(range(10 * id, 10 * id + 4), output=output, program=program)
    assert [finish(stepper, id) for id in range(5)] == [30, 24, 30, 30, 24]
    # b before a, whose three calls stay together; the lone one is a program of its own.
    assert served(stepper) == [1, 4, 0, 2, 3]


def test_weights_divide() -> None:
    stepper = Stepper(policy=Justitia(), max_running=1)
    stepper.add(range(4), output=4, weight=1.0, client="x")
    stepper.add(range(10, 14), output=4, weight=3.0, client="y")
    assert [finish(stepper, id) for id in range(2)] == [24, 8]
    assert served(stepper) == [1, 0]


def test_programs_of_two_clients_are_two() -> None:
    stepper = Stepper(policy=Justitia())
    for client in ("x", "y"):
        stepper.add(range(4), output=2, client=client, program="same")
    assert [finish(stepper, id) for id in range(2)] == [10, 10]


def test_virtual_time_is_the_pool_shared_out() -> None:
    stepper = Stepper(num_pages=10, policy=Justitia(), max_running=1)
    # 4 * 4 + 8 = 24 token-steps; 10 a step: alone, it is at 20 after two steps.
    stepper.add(range(4), output=4, program="a")
    stepper.step()
    stepper.step()
    stepper.add(range(20, 24), output=2, program="b")
    assert finish(stepper, 1) == 20 + 10
    # Shared by two: a has its last 4 at virtual time 24, after 8 of the step's 10; b gets 2 more.
    stepper.step()
    stepper.add(range(30, 34), output=2, program="c")
    assert finish(stepper, 2) == 26 + 10


def test_the_ideal_idles_when_all_is_done() -> None:
    stepper = Stepper(policy=Justitia(), max_running=1)
    stepper.add(range(4), output=4)
    stepper.run()
    # Within the first step the pool of 1000 was enough for its 24.
    stepper.add(range(4), output=2)
    assert finish(stepper, 1) == 24 + 10


def test_a_hint_prices_a_call() -> None:
    stepper = Stepper(policy=Justitia("hint"))
    stepper.add(range(4), output=9, expected_output=2)
    assert finish(stepper, 0) == 10


class Ideal(Audited):
    """Shares the pool out piece by piece, over a list of every program there ever was."""

    def __init__(self) -> None:
        super().__init__(Justitia(), self.pick)
        self.finishes: dict[Any, float] = {}
        self.number: dict[Any, int] = {}
        self.weights: dict[Any, float] = {}
        self.waiting: dict[Any, list[int]] = {}
        self.virtual = 0.0
        self.step = 0

    def on_start(self, view: SchedulerView) -> None:
        self.view = view
        self.pool = view.cache.num_free_pages * view.cache.page_size
        super().on_start(view)

    def name(self, sequence: SequenceView) -> Any:
        return sequence.client, sequence.program or sequence.id

    def on_arrival(self, sequence: SequenceView) -> Any:
        left = float((self.view.step - self.step) * self.pool)
        self.step = self.view.step
        while left > 1e-9:
            active = [name for name, end in self.finishes.items() if end > self.virtual + 1e-9]
            if not active:
                break
            weight = sum(self.weights[name] for name in active)
            reach = min(min(self.finishes[n] for n in active), self.virtual + left / weight)
            left -= (reach - self.virtual) * weight
            self.virtual = reach
        name = self.name(sequence)
        self.weights.setdefault(name, sequence.weight)
        output = sequence.max_new_tokens
        cost = sequence.num_prompt_tokens * output + output**2 / 2
        before = max(self.finishes.get(name, 0.0), self.virtual)
        self.finishes[name] = before + cost / self.weights[name]
        super().on_arrival(sequence)

    def pick(self, view: SchedulerView, left: list[SequenceView]) -> SequenceView:
        assert isinstance(self.policy, Justitia)
        for s in left:
            ours = self.policy.virtual_finish(s)
            assert ours == pytest.approx(self.finishes[self.name(s)], abs=1e-6)
        first = min(self.finishes[self.name(s)] for s in left)
        ties = [s for s in left if self.finishes[self.name(s)] < first + 1e-6]
        # Which of two programs goes first at a tie is told by the order of their first calls.
        proposed = self.policy._waiting.first()
        assert proposed is not None
        mine = [s for s in ties if s.index in proposed.item.calls]
        return mine[0]


@settings(max_examples=150)
@given(hinted_worlds())
def test_every_proposal_is_of_the_first_to_finish(world: World) -> None:
    world.run(policy=Ideal)


@settings(max_examples=50)
@given(st.lists(st.integers(0, 2), min_size=1, max_size=12))
def test_nothing_is_kept_of_programs_that_are_over(gaps: list[int]) -> None:
    policy = Justitia()
    stepper = Stepper(num_pages=20, policy=policy, max_running=2)
    for id, gap in enumerate(gaps):
        stepper.add(range(10 * id, 10 * id + 3), output=2, program="pq"[id % 2] if id % 3 else None)
        for _ in range(gap):
            stepper.step()
    stepper.run()
    # The ideal is looked at when somebody arrives.
    stepper.add([1], output=1)
    stepper.run()
    assert len(policy._programs) <= 1 and not policy._program_of


def test_parameters_are_checked() -> None:
    with pytest.raises(ValueError, match="prediction='none'"):
        Justitia("none")  # type: ignore[arg-type]
