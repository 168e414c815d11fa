"""A policy that breaks its contract hears so, by name, and cannot harm the cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from testbed.core.policy import Delay, PolicyError, Proposals, Refuse, SchedulingPolicy
from testbed.core.request import Request
from testbed.core.views import SchedulerView, SequenceView
from tests.core.building import make_request
from tests.core.stepping import Stepper


def request_with(id: int) -> Request:
    return make_request(id, [id], output=3)


class Proposes(SchedulingPolicy):
    """Proposes what a function makes of the view."""

    def __init__(self, propose: Callable[[SchedulerView], Iterator[Any]]) -> None:
        self.propose = propose

    def candidates(self, view: SchedulerView) -> Proposals:
        for proposal in self.propose(view):  # noqa: UP028 - an iterator hears no outcomes
            yield proposal


def twice(view: SchedulerView) -> Iterator[Any]:
    first = next(iter(view.waiting))
    yield first
    yield first


def running(view: SchedulerView) -> Iterator[Any]:
    yield from view.running
    yield from view.waiting


def nothing(view: SchedulerView) -> Iterator[Any]:
    return iter(())


@pytest.mark.parametrize(
    ("propose", "message"),
    [
        (twice, "Proposes proposed request 7 twice in one pass"),
        (lambda view: iter([7]), "Proposes proposed 7; a sequence of view.waiting is needed"),
        (lambda view: iter([None]), "Proposes proposed None; a sequence of view.waiting is needed"),
        (nothing, "Proposes proposes nothing that runs, though the replica is idle"),
    ],
)
def test_absurd_proposals(propose: Callable[[SchedulerView], Iterator[Any]], message: str) -> None:
    stepper = Stepper(policy=Proposes(propose))
    for id in (7, 8):
        stepper.submit(request_with(id))
    with pytest.raises(PolicyError, match=message):
        stepper.step()


def test_twice_is_told_even_if_the_first_proposal_did_not_fit() -> None:
    stepper = Stepper(num_pages=5, policy=Proposes(lambda view: iter([*view.waiting] * 2)))
    stepper.submit(request_with(1))
    stepper.step()
    stepper.add(range(50, 53), output=3)
    with pytest.raises(PolicyError, match="proposed request 1 twice in one pass"):
        stepper.step()


def test_a_running_sequence_cannot_be_admitted() -> None:
    stepper = Stepper(policy=Proposes(running))
    stepper.submit(request_with(7))
    stepper.step()
    stepper.submit(request_with(8))
    with pytest.raises(PolicyError, match="request 7, which is not waiting"):
        stepper.step()


def test_a_delayed_or_finished_sequence_cannot_be_admitted() -> None:
    kept: list[SequenceView] = []

    class Hoarder(Proposes):
        def on_arrival(self, sequence: SequenceView) -> Delay | None:
            kept.append(sequence)
            return Delay(99.0) if len(kept) == 1 else None

    stepper = Stepper(policy=Hoarder(lambda view: iter([kept[0], *view.waiting])))
    stepper.submit(request_with(7))
    stepper.submit(request_with(8))
    with pytest.raises(PolicyError, match="request 7, which is not waiting"):
        stepper.step()
    patient = Stepper(policy=Proposes(lambda view: iter([*view.waiting])))
    done = patient.submit(request_with(1))
    view = done.view
    patient.run()
    patient.policy = patient.scheduler.policy = Proposes(lambda _: iter([view]))
    patient.submit(request_with(2))
    with pytest.raises(PolicyError, match="request 1, which is not waiting"):
        patient.step()


@pytest.mark.parametrize(
    "verdict",
    [True, 3.0, Delay(0.0), Delay(float("nan")), Delay("soon"), Delay(1.1e15)],  # type: ignore[arg-type]
)
def test_an_arrival_is_answered_with_a_verdict(verdict: Any) -> None:
    class Odd(Proposes):
        def on_arrival(self, sequence: SequenceView) -> Any:
            return verdict

    stepper = Stepper(policy=Odd(nothing))
    with pytest.raises(PolicyError, match=r"Odd.on_arrival returned .*; None, Refuse or a Delay"):
        stepper.submit(request_with(1))


def test_a_refusal_is_in_words() -> None:
    class Curt(Proposes):
        def on_arrival(self, sequence: SequenceView) -> Any:
            return Refuse(3)  # type: ignore[arg-type]

    with pytest.raises(
        PolicyError, match=r"returned Refuse\(reason=3\) for request 7; a reason in"
    ):
        Stepper(policy=Curt(nothing)).submit(request_with(7))


def test_a_request_cannot_be_delayed_for_ever() -> None:
    class Tomorrow(Proposes):
        calls = 0

        def on_arrival(self, sequence: SequenceView) -> Delay | None:
            self.calls += 1
            return Delay(stepper.now + 1) if sequence.id == 7 else None

    policy = Tomorrow(lambda view: iter([*view.waiting]))
    stepper = Stepper(policy=policy)
    stepper.submit(request_with(7))
    with pytest.raises(PolicyError, match=r"Tomorrow\.on_arrival delayed request 7 10001 times"):
        for _ in range(10_001):
            stepper.now += 1
            stepper.scheduler.schedule(stepper.now)
    assert policy.calls == 10_001


def test_a_request_may_be_delayed_often() -> None:
    class Later(Proposes):
        def on_arrival(self, sequence: SequenceView) -> Delay | None:
            return Delay(stepper.now + 1) if stepper.now < 50 else None

    stepper = Stepper(policy=Later(lambda view: iter([*view.waiting])))
    sequence = stepper.submit(request_with(7))
    while stepper.now < 50:
        assert stepper.scheduler.schedule(stepper.now) is None
        stepper.now += 1
    assert stepper.scheduler.schedule(stepper.now) is not None
    assert sequence.state.value == "running"


@pytest.mark.parametrize("named", [None, 3])
def test_preemptions_are_named_in_an_iterable(named: Any) -> None:
    class Forgetful(Proposes):
        def preemptions(self, view: SchedulerView) -> Any:
            return named

    stepper = Stepper(policy=Forgetful(lambda view: iter([*view.waiting])))
    stepper.submit(request_with(7))
    with pytest.raises(PolicyError, match=rf"Forgetful.preemptions returned {named}; an iterable"):
        stepper.step()


def test_an_idle_replica_with_nothing_waiting_is_no_error() -> None:
    stepper = Stepper(policy=Proposes(nothing))
    assert stepper.step() is None


def test_holding_back_while_something_runs_is_allowed() -> None:
    stepper = Stepper(policy=Proposes(lambda v: iter(() if v.running else [*v.waiting][:1])))
    for id in (1, 2):
        stepper.submit(request_with(id))
    assert [step.finished for step in stepper.run()] == [[], [], [1], [], [], [2]]
