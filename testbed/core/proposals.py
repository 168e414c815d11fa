"""What a scheduling policy named, checked before the scheduler acts on it."""

from __future__ import annotations

from testbed.core.policy import PolicyError
from testbed.core.request import Sequence, State
from testbed.core.views import SequenceView


def proposed_sequence(view: object, proposed: set[int], policy: str) -> Sequence:
    """The waiting sequence behind a proposal; `proposed` are the indices of earlier ones."""
    sequence = _sequence(view, policy, "proposed", "waiting")
    if sequence.index in proposed:
        raise PolicyError(f"{policy} proposed request {sequence.request.id} twice in one pass")
    if sequence.state is not State.WAITING:
        raise PolicyError(f"{policy} proposed request {sequence.request.id}, which is not waiting")
    proposed.add(sequence.index)
    return sequence


def preempted_sequence(view: object, policy: str) -> Sequence:
    """The running sequence that a policy wants preempted."""
    sequence = _sequence(view, policy, "would preempt", "running")
    if sequence.state is not State.RUNNING:
        raise PolicyError(
            f"{policy} would preempt request {sequence.request.id}, which is not running"
        )
    return sequence


def _sequence(view: object, policy: str, verb: str, source: str) -> Sequence:
    if not isinstance(view, SequenceView):
        raise PolicyError(f"{policy} {verb} {view!r}; a sequence of view.{source} is needed")
    return view._sequence
