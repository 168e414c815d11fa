"""What a scheduling policy named or answered, checked before the scheduler acts on it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from numbers import Real

from testbed.core.policy import Delay, PolicyError, Refuse
from testbed.core.request import Sequence, State
from testbed.core.views import SequenceView

MAX_DELAYS = 10_000
"""How often one request may be delayed: a policy that always delays it would never end a run."""
LATEST = 1e15
"""Seconds: 30 million years; doubles are an eighth of a second apart there."""


def check_verdict(verdict: object, sequence: Sequence, now: float, delays: int, who: str) -> None:
    """PolicyError unless on_arrival refused the sequence with a reason, or delayed it past now.

    delays: how often the sequence was delayed, this time included.
    """
    id = sequence.request.id
    if isinstance(verdict, Refuse):
        accepted = None if isinstance(verdict.reason, str) else "a reason in words is needed"
    elif not isinstance(verdict, Delay) or not isinstance(verdict.until, Real):
        accepted = "None, Refuse or a Delay past now is needed"
    elif not now < verdict.until <= LATEST:
        accepted = f"None, Refuse or a Delay past now (at most {LATEST:g} s) is needed"
    else:
        accepted = None
        if delays > MAX_DELAYS:
            raise PolicyError(f"{who}.on_arrival delayed request {id} {delays} times in a row")
    if accepted is not None:
        raise PolicyError(f"{who}.on_arrival returned {verdict!r} for request {id}; {accepted}")


def proposed_sequence(view: object, proposed: set[int], policy: str) -> Sequence:
    """The waiting sequence behind a proposal; `proposed` are the indices of earlier ones."""
    sequence = _sequence(view, policy, "proposed", "waiting")
    if sequence.index in proposed:
        raise PolicyError(f"{policy} proposed request {sequence.request.id} twice in one pass")
    if sequence.state is not State.WAITING:
        raise PolicyError(f"{policy} proposed request {sequence.request.id}, which is not waiting")
    proposed.add(sequence.index)
    return sequence


def preempted_sequences(views: object, policy: str) -> Iterator[Sequence]:
    """The running sequences that a policy wants preempted, each checked when its turn comes."""
    if not isinstance(views, Iterable):
        raise PolicyError(f"{policy}.preemptions returned {views!r}; an iterable is needed")
    for view in views:
        sequence = _sequence(view, policy, "would preempt", "running")
        if sequence.state is not State.RUNNING:
            raise PolicyError(
                f"{policy} would preempt request {sequence.request.id}, which is not running"
            )
        yield sequence


def _sequence(view: object, policy: str, verb: str, source: str) -> Sequence:
    if not isinstance(view, SequenceView):
        raise PolicyError(f"{policy} {verb} {view!r}; a sequence of view.{source} is needed")
    return view._sequence
