"""Preble's ten groups and SGLang's routing keys: passes by hand, every pick against the rule."""

from __future__ import annotations

from collections import Counter
from math import ceil
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.core.views import SchedulerView, SequenceView
from testbed.policies.scheduling.groups import Preble, RoutingKey
from tests.core.stepping import Stepper
from tests.policies.auditing import Audited, order
from tests.policies.hinted import hinted_worlds
from tests.sim.worlds import World, worlds


def warmed(policy: Preble) -> Stepper:
    """20 tokens are cached."""
    stepper = Stepper(num_pages=10_000, policy=policy)
    stepper.add(range(20))
    stepper.run()
    return stepper


def prompt(cached: int, length: int, number: int) -> list[int]:
    return [*range(cached), *range(1000 * number, 1000 * number + length - cached)]


def admissions(stepper: Stepper) -> list[list[int]]:
    """Ids by the step that admitted them."""
    steps = stepper.run()
    return [ids for step in steps if (ids := [id for id, start, _ in step.prefills])]


def test_hit_ratios_fall_into_ten_groups_served_from_the_top() -> None:
    stepper = warmed(Preble())
    # Of 20: 0 cached is group 0, 2 is 0, 3 is 1 (15 %), 18 is 8, 19 and 20 (all) are 9.
    for number, cached in enumerate((0, 2, 3, 18, 19), start=1):
        stepper.add(prompt(cached, 20, number))
    stepper.add(range(20))
    assert admissions(stepper) == [[5, 6], [4], [3], [1, 2]]


def test_higher_groups_get_more_slots_and_the_turn_moves_on() -> None:
    stepper = warmed(Preble(slots=1))
    for number in range(1, 4):
        stepper.add(prompt(0, 20, number))
    for number in range(4, 7):
        stepper.add(prompt(4, 20, number))
    # Group 1 may have two, group 0 one; what is left waits for the next round.
    assert admissions(stepper) == [[4, 5], [1], [6], [2], [3]]


def test_what_does_not_fit_is_skipped() -> None:
    policy = Preble()
    stepper = Stepper(num_pages=10, policy=policy, kind="none")
    stepper.add(range(3), output=3)
    stepper.step()
    stepper.add(range(10))
    stepper.add([7], output=3)
    assert stepper.step() is not None
    assert [s.request.id for s in stepper.scheduler.running] == [0, 2]


class Turns(Audited):
    """Which group's turn it is, and how many of it went."""

    def __init__(self, slots: int) -> None:
        super().__init__(Preble(slots), self.pick)
        self.slots = slots
        self.next = 9
        self.group = 9
        self.went = 0

    def group_of(self, view: SchedulerView, sequence: SequenceView) -> int:
        matched = view.cache.peek(sequence.tokens, sequence.namespace)
        return 0 if matched == 0 else ceil(10 * matched / sequence.num_tokens) - 1

    def candidates(self, view: SchedulerView) -> Any:
        groups = {self.group_of(view, s) for s in view.waiting}
        while self.next not in groups:
            self.next = (self.next - 1) % 10
        self.group, self.next, self.went = self.next, (self.next - 1) % 10, 0
        return super().candidates(view)

    def pick(self, view: SchedulerView, left: list[SequenceView]) -> SequenceView:
        assert self.went < (self.group + 1) * self.slots
        mine = [s for s in left if self.group_of(view, s) == self.group]
        return min(mine, key=lambda s: s.index)

    def on_admit(self, sequence: SequenceView, cached: int, extend: int) -> None:
        self.went += 1
        super().on_admit(sequence, cached, extend)


@settings(max_examples=150)
@given(worlds(replicas=1), st.sampled_from([1, 2, 10]))
def test_every_proposal_is_of_the_group_whose_turn_it_is(world: World, slots: int) -> None:
    world.run(policy=lambda: Turns(slots), skip_quiet_steps=False)


def test_keys_that_run_most_go_first_then_arrival_order() -> None:
    policy = RoutingKey()
    stepper = Stepper(policy=policy, max_running=8)
    for program in ("b", "a", "b", None, "c", "a"):
        stepper.add([1], output=9, program=program)
    stepper.step()
    for program in ("x", "c", None, "a", "b", "b"):
        stepper.add([2], program=program)
    # a and b run twice, c once; of the two free slots a gets the first, its only one.
    assert order(policy, stepper.scheduler._view) == [9]
    stepper.step()
    admitted = [row[3] for row in stepper.log.rows if row[2] == "admit"]
    assert admitted[6:] == [9, 10]


def test_the_order_is_fixed_when_a_pass_begins() -> None:
    stepper = Stepper(policy=RoutingKey("client"), max_running=3)
    for client in ("x", "y", "x"):
        stepper.add([1], client=client)
    stepper.step()
    # Nothing ran: arrival order, though x runs once the first is in.
    assert [row[3] for row in stepper.log.rows if row[2] == "admit"] == [0, 1, 2]


class Keys(Audited):
    """Counts keys in the running batch at the start of each pass."""

    def __init__(self, key: Any) -> None:
        super().__init__(RoutingKey(key), self.pick)
        self.key = key

    def candidates(self, view: SchedulerView) -> Any:
        keys = (getattr(s, self.key) for s in view.running)
        self.counts = Counter(key for key in keys if key is not None)
        self.queue = {s.index: place for place, s in enumerate(view.waiting)}
        return super().candidates(view)

    def pick(self, view: SchedulerView, left: list[SequenceView]) -> SequenceView:
        def rank(s: SequenceView) -> tuple[Any, ...]:
            key = getattr(s, self.key)
            if self.counts[key]:
                return 0, -self.counts[key], key, s.index
            return 1, self.queue[s.index]

        return min(left, key=rank)


@settings(max_examples=150)
@given(hinted_worlds(), st.sampled_from(["program", "client", "namespace"]))
def test_every_proposal_follows_the_keys_of_the_batch(world: World, key: str) -> None:
    world.run(policy=lambda: Keys(key))


def test_parameters_are_checked() -> None:
    with pytest.raises(ValueError, match="slots=0: at least 1 is needed"):
        Preble(0)
    with pytest.raises(ValueError, match="key='user': program, client or namespace is needed"):
        RoutingKey("user")  # type: ignore[arg-type]
