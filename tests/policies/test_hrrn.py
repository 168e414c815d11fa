"""HRRN by prefilled tokens: SGLang's own rows, every pick against the rule."""

from __future__ import annotations

from math import inf
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.core.views import SchedulerView, SequenceView
from testbed.policies.scheduling.hrrn import Hrrn
from tests.core.stepping import Stepper
from tests.policies.auditing import Audited, order
from tests.sim.worlds import World, worlds


def aged(stepper: Stepper, tokens: int, first: int = 100_000) -> None:
    """Let the clock pass: `tokens` are prefilled while the others wait."""
    stepper.add(range(first, first + tokens))
    scheduler = stepper.scheduler
    sequence = list(stepper.sequences.values())[-1]
    scheduler.policy.on_admit(sequence.view, 0, tokens)


def order_of(stepper: Stepper) -> list[int]:
    policy = stepper.policy
    return order(policy, stepper.scheduler._view)


def hrrn() -> Stepper:
    return Stepper(num_pages=300_000, policy=Hrrn("skip"))


def test_of_those_that_came_together_fewest_uncached_tokens_go_first() -> None:  # row 102
    stepper = hrrn()
    for id, uncached in enumerate((10, 1, 3)):
        stepper.add(range(100 * id, 100 * id + uncached))
    aged(stepper, 1000)
    assert order_of(stepper)[:3] == [1, 2, 0]


def test_a_long_prompt_that_waited_beats_a_short_one_that_did_not() -> None:  # row 103
    stepper = hrrn()
    stepper.add(range(100))
    aged(stepper, 100_000)
    stepper.add([200_001])
    assert order_of(stepper)[0] == 0


def test_what_is_cached_does_not_count() -> None:  # row 104
    stepper = hrrn()
    stepper.add(range(90))
    stepper.run()
    stepper.add(range(1000, 1100))
    stepper.add(range(2000, 2100))
    stepper.add(range(100))
    aged(stepper, 500)
    assert order_of(stepper)[:3] == [3, 1, 2]


def test_fully_cached_ones_go_before_all() -> None:
    stepper = hrrn()
    stepper.add([1, 2, 3])
    stepper.run()
    stepper.add([9])
    aged(stepper, 70_000)
    stepper.add([1, 2, 3])
    assert order_of(stepper)[0] == 3


class Clock(Audited):
    """Counts prefilled tokens anew and picks by looking at everybody."""

    def __init__(self, on_misfit: Any) -> None:
        super().__init__(Hrrn(on_misfit), self.pick)
        self.prefilled = 0
        self.at_start = 0
        self.before: dict[int, int] = {}

    def candidates(self, view: SchedulerView) -> Any:
        self.matches = {s.index: view.cache.peek(s.tokens, s.namespace) for s in view.waiting}
        self.at_start = self.prefilled
        return super().candidates(view)

    def pick(self, view: SchedulerView, left: list[SequenceView]) -> SequenceView:
        def rank(s: SequenceView) -> tuple[float, int]:
            uncached = s.num_tokens - self.matches[s.index]
            waited = self.at_start - self.before[s.index]
            return -(waited / uncached if uncached else inf), s.index

        return min(left, key=rank)

    def on_arrival(self, sequence: SequenceView) -> Any:
        self.before[sequence.index] = self.prefilled
        return super().on_arrival(sequence)

    def on_admit(self, sequence: SequenceView, cached: int, extend: int) -> None:
        self.prefilled += extend
        super().on_admit(sequence, cached, extend)


@settings(max_examples=100)
@given(worlds(replicas=1), st.sampled_from(["stop", "skip"]))
def test_every_proposal_has_the_highest_ratio(world: World, on_misfit: str) -> None:
    world.run(policy=lambda: Clock(on_misfit))
