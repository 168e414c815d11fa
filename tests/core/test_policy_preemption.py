"""A policy may throw running sequences out before a pass."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from testbed.core.policy import PolicyError, Proposals, SchedulingPolicy
from testbed.core.views import SchedulerView, SequenceView
from tests.core.stepping import Stepper


class Urgent(SchedulingPolicy):
    """Higher priority first; a waiting sequence throws out whoever runs with a lower one."""

    def candidates(self, view: SchedulerView) -> Proposals:
        for sequence in sorted(view.waiting, key=lambda s: (-s.priority, s.index)):
            if not (yield sequence):
                return

    def preemptions(self, view: SchedulerView) -> Iterable[SequenceView]:
        best = max(sequence.priority for sequence in view.waiting)
        return [sequence for sequence in view.running if sequence.priority < best]


def test_the_named_sequence_waits_again_and_resumes_later() -> None:
    stepper = Stepper(num_pages=10, policy=Urgent(), max_running=1)
    low = stepper.add([1, 2, 3], output=4)
    first = stepper.step()
    assert first is not None and first.prefills == [(0, 0, 3)]
    high = stepper.add([7, 8], output=1, priority=1)
    second = stepper.step()
    # The prompt stays in the tree, so that only what was generated is computed again.
    assert second is not None and (second.decodes, second.prefills) == ([], [(1, 0, 2)])
    steps = stepper.run()
    assert steps[0].prefills == [(0, 3, 1)]
    assert (low.num_preemptions, high.num_preemptions) == (1, 0)
    assert low.num_generated_tokens == 4


def test_it_is_asked_though_no_slot_is_free_and_not_while_nobody_waits() -> None:
    class Counting(Urgent):
        def __init__(self) -> None:
            self.asked = 0

        def preemptions(self, view: SchedulerView) -> Iterable[SequenceView]:
            self.asked += 1
            return ()

    policy = Counting()
    stepper = Stepper(policy=policy, max_running=1)
    stepper.add([1, 2], output=3)
    stepper.add([3, 4], output=1)
    stepper.run()
    # Steps 1 to 3 serve the first request and step 4 the second; at its start both wait, or one.
    assert policy.asked == 4
    stepper.add([5, 6], output=2)
    stepper.run()
    assert policy.asked == 5


def test_a_sequence_that_does_not_run_is_refused() -> None:
    class Confused(Urgent):
        def preemptions(self, view: SchedulerView) -> Iterable[SequenceView]:
            return list(view.waiting)[:1]

    stepper = Stepper(policy=Confused())
    stepper.add([1, 2])
    with pytest.raises(PolicyError, match="Confused would preempt request 0, which is not running"):
        stepper.step()


def test_what_is_no_sequence_is_refused() -> None:
    class Typed(Urgent):
        def preemptions(self, view: SchedulerView) -> Iterable[SequenceView]:
            return [3]  # type: ignore[list-item]

    stepper = Stepper(policy=Typed())
    stepper.add([1, 2])
    with pytest.raises(PolicyError, match=r"Typed would preempt 3; a sequence of view\.running"):
        stepper.step()
