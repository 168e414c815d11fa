"""Serve a case in the simulator, with limits on how long that may take."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from testbed.conformance.case import Case
from testbed.conformance.subject import Company, Gate, Subject
from testbed.core.batch import BatchShape
from testbed.core.cost import CostModel
from testbed.core.records import RunRecord
from testbed.policies.scheduling.arrival import Fcfs
from testbed.sim.latency import FixedLatency, LatencyModel
from testbed.sim.world import simulate

STEPS_A_TOKEN = 3
"""A run may take so many steps for each token that the case holds, and 100 more."""


class Livelock(Exception):
    """The run makes steps and comes to no end."""


class LimitedLatency(LatencyModel):
    """Another model's seconds; raises Livelock after so many steps."""

    def __init__(self, model: LatencyModel, max_steps: int) -> None:
        self._model = model
        self._max_steps = max_steps
        self._steps = 0

    def step_seconds(self, shape: BatchShape) -> float:
        """Seconds of one step."""
        self._count(1)
        return self._model.step_seconds(shape)

    def decode_run(self, shape: BatchShape, steps: int) -> npt.NDArray[np.float64]:
        """float64[steps]."""
        self._count(steps)
        return self._model.decode_run(shape, steps)

    def _count(self, steps: int) -> None:
        self._steps += steps
        if self._steps > self._max_steps:
            raise Livelock(f"after {self._max_steps} steps the run has not ended")


def serve(
    subject: Subject,
    case: Case,
    *,
    policy: type[Any] | None = None,
    company: Company | None = None,
    skip_quiet_steps: bool = False,
    balances: bool = True,
) -> RunRecord:
    """The record of the case, decisions included.

    policy: a subclass to take the place of the subject's class. company: the other kinds.
    balances: balance the cache's books at every step. Raises whatever the policy or the core
    raises, and Livelock.
    """
    company = company or Company(scheduling=Gate if case.delays else Fcfs)
    makers = {
        kind: partial(subject.make, policy) if kind == subject.kind else getattr(company, kind)
        for kind in ("scheduling", "eviction", "routing")
    }
    latency = FixedLatency(case.token_seconds, minimum=4 * case.token_seconds)
    tokens = sum(len(r.prompt) + r.max_new_tokens for r in case.requests)
    return simulate(
        case.requests,
        cache=case.cache,
        scheduler=case.scheduler,
        policy=makers["scheduling"],
        eviction=makers["eviction"],
        routing=makers["routing"](),
        latency=LimitedLatency(latency, 100 + STEPS_A_TOKEN * tokens),
        # Policies that ask what a step costs must not use up the limit.
        cost=CostModel(latency.step_seconds),
        replicas=case.replicas,
        staleness=case.staleness,
        record_decisions=True,
        skip_quiet_steps=skip_quiet_steps,
        check_invariants=balances,
    )


def decisions(record: RunRecord) -> list[tuple[Any, ...]]:
    """The rows of the decision log."""
    assert record.decisions is not None
    return list(zip(*(column.tolist() for column in record.decisions.values()), strict=True))


def first_difference(ours: list[tuple[Any, ...]], theirs: list[tuple[Any, ...]]) -> str | None:
    """Where two runs part, in words; None if they are equal."""
    for place in range(max(len(ours), len(theirs))):
        a = ours[place] if place < len(ours) else None
        b = theirs[place] if place < len(theirs) else None
        if a != b:
            return f"decision {place} is {_described(a)} in one, {_described(b)} in the other"
    return None


def _described(row: tuple[Any, ...] | None) -> str:
    if row is None:
        return "none"
    replica, step, kind, request = row[:4]
    who = f" of request {request}" if request >= 0 else ""
    return f"{kind}{who} {row[4:]} in step {step} of replica {replica}"
