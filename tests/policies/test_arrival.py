"""FCFS: the queue as it stands."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from testbed.core.views import SchedulerView, SequenceView
from testbed.policies.scheduling.arrival import Fcfs
from tests.core.stepping import Stepper
from tests.policies.auditing import Audited, order
from tests.sim.worlds import World, worlds


def test_the_order_is_that_of_arrival_whatever_is_cached() -> None:  # row 88
    policy = Fcfs("skip")
    stepper = Stepper(policy=policy)
    stepper.add([2, 2, 2])
    stepper.run()
    for id, prompt in ((1, [9]), (2, [2, 2, 2, 2]), (3, [8])):
        assert stepper.add(prompt).request.id == id
    assert order(policy, stepper.scheduler._view) == [1, 2, 3]


@pytest.mark.parametrize("on_misfit", ["", "Stop", None])
def test_a_misfit_is_stopped_at_or_skipped(on_misfit: str) -> None:
    with pytest.raises(ValueError, match=f"on_misfit={on_misfit!r}: stop or skip is needed"):
        Fcfs(on_misfit)  # type: ignore[arg-type]


def front(view: SchedulerView, left: list[SequenceView]) -> SequenceView:
    return left[0]


@settings(max_examples=40)
@given(worlds(replicas=1))
def test_every_proposal_is_the_front_of_the_queue(world: World) -> None:
    world.run(policy=lambda: Audited(Fcfs("skip"), front))
