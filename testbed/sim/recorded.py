"""Replay of an engine run: its step times and tokens, and the simulator's own decisions.

The engine adds requests and ends steps at instants of its clock; the replay sets the same events at
the same instants. Everything between them (queues, policies, tree, pool) is decided anew, so equal
DecisionLogs mean that simulator and engine agree on every decision.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple

import numpy.typing as npt
import simpy

from testbed.core.batch import Batch, StepResult
from testbed.core.config import CacheConfig, SchedulerConfig
from testbed.core.cost import CostModel
from testbed.core.decisions import DecisionLog
from testbed.core.policy import EvictionPolicy, SchedulingPolicy
from testbed.core.recorder import Recorder
from testbed.core.records import Columns, added_requests
from testbed.core.request import Sequence, State, Tokens
from testbed.core.scheduler import Scheduler
from testbed.sim.clock import ARRIVALS, Clock
from testbed.sim.replica import Replica


class ReplayDiverged(Exception):
    """The replay asks for a step that was not recorded, or for another number of tokens."""


class RecordedExecutor:
    """Gives each step the seconds and the tokens that were measured, whatever the batch holds.

    measured: by MEASURED_COLUMNS. Raises ReplayDiverged where the batch samples another number of
    tokens than the recorded step, or after the last one.
    """

    def __init__(self, measured: Columns) -> None:
        self._seconds: list[float] = measured["seconds"].tolist()
        self._tokens: npt.NDArray[Any] = measured["tokens"]

    def execute(self, batch: Batch) -> StepResult:
        """The recorded step of the batch's number."""
        place = batch.step - 1
        if place >= len(self._seconds):
            raise ReplayDiverged(f"step {batch.step}: {len(self._seconds)} steps were recorded")
        tokens = self._tokens[place]
        if len(tokens) != batch.shape.logit_rows:
            raise ReplayDiverged(
                f"step {batch.step} samples {batch.shape.logit_rows} tokens, recorded: "
                f"{len(tokens)}"
            )
        return StepResult(self._seconds[place], tokens)


class Replay(NamedTuple):
    """log: the simulator's decisions. outputs: int32 tokens by request id, of those that finished.

    diverged: why the replay could not go on; None if it reached the end.
    """

    log: DecisionLog
    outputs: dict[int, Tokens]
    diverged: str | None


def replay(
    added: Columns,
    measured: Columns,
    *,
    cache: CacheConfig,
    scheduler: SchedulerConfig,
    policy: SchedulingPolicy,
    eviction: EvictionPolicy,
    cost: CostModel | None = None,
) -> Replay:
    """Serve an engine run's requests as they were added, one step after the other, on one replica.

    added: by ADDED_COLUMNS, instants on the engine's clock. measured: by MEASURED_COLUMNS. cost:
    what the engine's policies saw.
    """
    clock = Clock()
    log = DecisionLog()
    served = Scheduler(cache, scheduler, policy, eviction, log, cost)
    outputs: dict[int, Tokens] = {}

    def on_left(sequence: Sequence) -> None:
        if sequence.state is State.FINISHED:
            outputs[sequence.request.id] = sequence.output_tokens()

    replica = Replica(
        clock,
        0,
        served,
        RecordedExecutor(measured),
        ahead=None,
        recorder=Recorder(0, served),
        on_left=on_left,
        check_invariants=False,
    )

    def arrivals() -> Generator[simpy.Event, Any, None]:
        instants, refusals = added["added_s"].tolist(), added["refusal"].tolist()
        for request, instant, refusal in zip(
            added_requests(added), instants, refusals, strict=True
        ):
            if instant > clock.now:
                yield clock.at(instant, ARRIVALS)
            if refusal:
                log.refuse(served.step, Sequence(request, -1))
            else:
                replica.submit(request)

    clock.process(arrivals())
    try:
        clock.run()
    except ReplayDiverged as reason:
        return Replay(log, outputs, str(reason))
    return Replay(log, outputs, None)
