"""Looks over a scheduling policy's shoulder: is each proposal the one that its rule demands?"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from testbed.core.policy import (
    NO_MEMORY,
    Delay,
    Outcome,
    Refuse,
    SchedulingPolicy,
)
from testbed.core.views import SchedulerView, SequenceView

Rule = Callable[[SchedulerView, list[SequenceView]], SequenceView]
"""Which of the given waiting sequences, in queue order, must be proposed next."""


def order(policy: SchedulingPolicy, view: SchedulerView) -> list[int]:
    """Request ids in the order of proposing, if nothing fits: a pass without effect."""
    proposed: list[int] = []
    outcome: Outcome | None = None
    proposals = ask(policy, view)
    try:
        while True:
            proposed.append(proposals.send(outcome).id)
            outcome = NO_MEMORY
    except StopIteration:
        return proposed


def ask(policy: SchedulingPolicy, view: SchedulerView) -> Generator[SequenceView, Any, None]:
    """The policy's candidates as a generator, if they are only an iterator."""
    candidates: Any = policy.candidates(view)
    if isinstance(candidates, Generator):
        return candidates

    def listen() -> Generator[SequenceView, Any, None]:
        for sequence in candidates:  # noqa: UP028 - an iterator hears no outcomes
            yield sequence

    return listen()


class Audited(SchedulingPolicy):
    """The policy itself, each of its proposals compared with what the rule demands at that moment.

    Sequences that did not fit are out for the rest of the pass.
    """

    def __init__(self, policy: SchedulingPolicy, rule: Rule) -> None:
        self.policy = policy
        self.rule = rule
        self.proposals = 0

    def on_start(self, view: SchedulerView) -> None:
        self.policy.on_start(view)

    def candidates(self, view: SchedulerView) -> Generator[SequenceView, Outcome, None]:
        misfits: set[int] = set()
        proposals = ask(self.policy, view)
        outcome: Outcome | None = None
        try:
            while True:
                left = [s for s in view.waiting if s.index not in misfits]
                try:
                    sequence = proposals.send(outcome)
                except StopIteration:
                    return
                assert sequence.id == self.rule(view, left).id
                self.proposals += 1
                outcome = yield sequence
                if not outcome:
                    misfits.add(sequence.index)
        finally:
            proposals.close()

    def on_arrival(self, sequence: SequenceView) -> Refuse | Delay | None:
        return self.policy.on_arrival(sequence)

    def on_match(self, sequence: SequenceView) -> None:
        self.policy.on_match(sequence)

    def on_admit(self, sequence: SequenceView, cached: int, extend: int) -> None:
        self.policy.on_admit(sequence, cached, extend)

    def on_tokens(self, sequence: SequenceView, count: int) -> None:
        self.policy.on_tokens(sequence, count)

    def on_finish(self, sequence: SequenceView) -> None:
        self.policy.on_finish(sequence)

    def on_preempt(self, sequence: SequenceView) -> None:
        self.policy.on_preempt(sequence)
