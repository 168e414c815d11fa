"""Priorities: both sign conventions, aging that keeps its order, and whose place is taken when."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.core.config import SchedulerConfig
from testbed.core.views import SchedulerView, SequenceView
from testbed.policies.scheduling.priority import PreemptivePriority, Priority
from tests.core.stepping import Stepper
from tests.policies.auditing import Audited, order
from tests.policies.hinted import hinted_worlds
from tests.sim.worlds import World


@pytest.mark.parametrize(
    ("first", "expected"), [("highest", [1, 3, 0, 2]), ("lowest", [2, 0, 1, 3])]
)
def test_highest_first_as_sglang_or_lowest_first_as_vllm(first: Any, expected: list[int]) -> None:
    policy = Priority(first, on_misfit="skip")
    stepper = Stepper(policy=policy)
    for priority in (0, 5, -3, 5):
        stepper.add([1], priority=priority)
    assert order(policy, stepper.scheduler._view) == expected


@pytest.mark.parametrize("first", ["highest", "lowest"])
def test_a_level_is_worth_one_over_aging_seconds(first: Any) -> None:
    policy = Priority(first, aging=0.5, on_misfit="skip")
    stepper = Stepper(policy=policy)
    sign = 1 if first == "highest" else -1
    # Two levels above it are made up for by 4 seconds of waiting: those that arrive later wait.
    stepper.add([1], priority=0, arrival=0.0)
    stepper.add([2], priority=2 * sign, arrival=4.5)
    stepper.add([3], priority=2 * sign, arrival=3.5)
    assert order(policy, stepper.scheduler._view) == [2, 0, 1]


def test_only_aging_and_stopping_let_nobody_starve() -> None:
    assert Priority().may_starve
    assert not Priority(aging=0.1).may_starve
    assert Priority(aging=0.1, on_misfit="skip").may_starve


class Levels(Audited):
    """Ages everybody by the clock and picks by looking at them all."""

    def __init__(self, first: Any, aging: float, on_misfit: Any) -> None:
        super().__init__(Priority(first, aging, on_misfit), self.pick)
        self.sign = 1 if first == "highest" else -1
        self.aging = aging

    def pick(self, view: SchedulerView, left: list[SequenceView]) -> SequenceView:
        def level(s: SequenceView) -> float:
            return self.sign * s.priority + self.aging * (view.now - s.arrival)

        best = max(map(level, left))
        # A sum that was rounded otherwise is no other level.
        return min((s for s in left if level(s) > best - 1e-6), key=lambda s: s.index)


@settings(max_examples=100)
@given(
    hinted_worlds(),
    st.sampled_from(["highest", "lowest"]),
    st.sampled_from([0.0, 0.37, 40.0]),
    st.sampled_from(["stop", "skip"]),
)
def test_every_proposal_is_at_the_highest_level(
    world: World, first: str, aging: float, on_misfit: str
) -> None:
    world.run(policy=lambda: Levels(first, aging, on_misfit))


def victims(first: Any, lifetimes: list[int], tokens: int, priority: int) -> list[int]:
    """Who of the running sequences, of priority 0, 1, 2 ..., makes room for the newcomer."""
    policy = PreemptivePriority(first, threshold=0.0, on_misfit="skip")
    stepper = Stepper(num_pages=sum(lifetimes), policy=policy, kind="none")
    for level, lifetime in enumerate(lifetimes):
        stepper.add([level], output=lifetime, priority=level)
    stepper.step()
    stepper.add([999], output=tokens, priority=priority)
    stepper.step()
    stepper.step()
    return [id for id, s in stepper.sequences.items() if s.num_preemptions]


def test_the_least_urgent_makes_room_for_the_newcomer() -> None:  # rows 107, 110
    assert victims("highest", [50, 75, 100], 50, priority=1) == [0]
    assert victims("lowest", [50, 75, 100], 50, priority=1) == [2]
    five = [50, 75, 100, 125, 125]
    assert victims("lowest", five, 75, priority=0) == [4]
    assert victims("lowest", five, 200, priority=0) == [3, 4]


def test_nobody_leaves_for_who_is_not_more_urgent_or_cannot_fit_then() -> None:  # row 108
    assert victims("highest", [50, 75, 100], 50, priority=0) == []
    assert victims("highest", [50, 75, 100], 111, priority=1) == []


def running(stepper: Stepper) -> list[int]:
    return sorted(sequence.request.id for sequence in stepper.scheduler.running)


@pytest.mark.parametrize(("priority", "expected"), [(10, [0, 1]), (11, [0, 2])])
def test_a_slot_is_taken_from_the_newest_of_the_least_urgent(
    priority: int, expected: list[int]
) -> None:
    stepper = Stepper(policy=PreemptivePriority(), max_running=2)
    stepper.add([1, 2], output=10)
    stepper.add([3, 4], output=10)
    stepper.step()
    stepper.add([5, 6], output=10, priority=priority)
    stepper.step()
    assert running(stepper) == expected


def out_of_memory(lifetime: int) -> Stepper:
    """Three that fill the pool with 10 pages each, and one that is refused."""
    stepper = Stepper(num_pages=30, policy=PreemptivePriority(), kind="none")
    for id, priority in enumerate((0, 25, 0)):
        stepper.add([id] * 4, output=7, priority=priority)
    stepper.step()
    stepper.add([9] * 5, output=lifetime - 4, priority=30)
    stepper.step()
    assert running(stepper) == [0, 1, 2]
    stepper.step()
    return stepper


@pytest.mark.parametrize(
    ("lifetime", "expected"), [(10, [0, 1, 3]), (11, [1, 3]), (20, [1, 3]), (21, [0, 1, 2])]
)
def test_as_many_leave_as_make_room_or_none(lifetime: int, expected: list[int]) -> None:
    # The one of priority 25 is not more than 10 behind; the two others hold 20 pages.
    assert running(out_of_memory(lifetime)) == expected


def test_a_victim_goes_on_where_it_was_and_nobody_is_lost() -> None:
    stepper = out_of_memory(20)
    stepper.run()
    assert all(len(s.output_tokens()) == s.num_output_tokens for s in stepper.sequences.values())
    assert [s.num_preemptions for s in stepper.sequences.values()] == [1, 0, 1, 0]


def test_nobody_leaves_for_one_that_fits() -> None:
    stepper = Stepper(policy=PreemptivePriority())
    stepper.add([1, 2], output=10)
    stepper.step()
    stepper.add([5, 6], output=10, priority=99)
    stepper.step()
    assert running(stepper) == [0, 1]


class Watched(Audited):
    """Checks each preemption against the threshold, and that it was worth it."""

    def __init__(self, threshold: float) -> None:
        super().__init__(PreemptivePriority(threshold=threshold), self.highest)
        self.threshold = threshold
        self.owed: int | None = None

    def highest(self, view: SchedulerView, left: list[SequenceView]) -> SequenceView:
        return max(left, key=lambda s: (s.priority, -s.index))

    def preemptions(self, view: SchedulerView) -> Iterable[SequenceView]:
        assert self.owed is None, "the newcomer did not get the place that was made for it"
        victims = list(self.policy.preemptions(view))
        if victims:
            newcomer = self.highest(view, list(view.waiting))
            self.owed = newcomer.index
            for victim in victims:
                assert victim.priority < newcomer.priority - self.threshold
            kept = [s for s in view.running if s not in victims]
            least = max((s.priority for s in victims), default=0)
            assert all(s.priority >= least for s in kept)
        return victims

    def on_admit(self, sequence: SequenceView, cached: int, extend: int) -> None:
        if sequence.index == self.owed:
            self.owed = None
        super().on_admit(sequence, cached, extend)


@settings(max_examples=200)
@given(hinted_worlds(), st.sampled_from([0.0, 1.0, 10.0]))
def test_every_preemption_is_due_and_pays(world: World, threshold: float) -> None:
    world = replace(
        world,
        cache=replace(world.cache, kind="none"),
        scheduler=SchedulerConfig(max_running=world.scheduler.max_running),
    )
    world.run(policy=lambda: Watched(threshold))


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"first": "low"}, "first='low': highest or lowest is needed"),
        ({"aging": -1.0}, r"aging=-1\.0: a finite number of at least 0"),
        ({"threshold": float("inf")}, "threshold=inf: a finite number of at least 0"),
    ],
)
def test_parameters_are_checked(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PreemptivePriority(**parameters)
