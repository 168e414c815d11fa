"""Replay of an engine run: its step times and tokens, and the simulator's own decisions.

The engine adds requests and ends steps at instants of its clock; the replay sets the same events at
the same instants. Everything between them (queues, policies, tree, pool) is decided anew, so equal
DecisionLogs mean that simulator and engine agree on every decision.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import simpy

from testbed.core.batch import Batch, StepResult
from testbed.core.config import CacheConfig, SchedulerConfig
from testbed.core.decisions import DecisionLog
from testbed.core.policy import EvictionPolicy, SchedulingPolicy
from testbed.core.recorder import Recorder
from testbed.core.request import Request, Sequence, Tokens
from testbed.core.scheduler import Scheduler
from testbed.sim.clock import ARRIVALS, Clock
from testbed.sim.replica import Replica


class ReplayDiverged(Exception):
    """The replay asks for a step that was not recorded, or for another number of tokens."""


class RecordedExecutor:
    """Gives each step the seconds and the tokens that were measured, whatever the batch holds.

    seconds: float64[steps]. sampled: int64[steps], tokens sampled in each step. tokens:
    int32[sum(sampled)], of all steps in row order. Raises ReplayDiverged where the batch samples
    another number of tokens than the recorded step, or after the last one.
    """

    def __init__(
        self, seconds: npt.NDArray[np.float64], sampled: npt.NDArray[np.int64], tokens: Tokens
    ) -> None:
        self._seconds = seconds
        self._ends = np.concatenate(([0], np.cumsum(sampled)))
        self._tokens = tokens

    def execute(self, batch: Batch) -> StepResult:
        """The recorded step of the batch's number."""
        place = batch.step - 1
        if place >= len(self._seconds):
            raise ReplayDiverged(f"step {batch.step}: {len(self._seconds)} steps were recorded")
        tokens = self._tokens[self._ends[place] : self._ends[place + 1]]
        if len(tokens) != batch.shape.logit_rows:
            raise ReplayDiverged(
                f"step {batch.step} samples {batch.shape.logit_rows} tokens, recorded: "
                f"{len(tokens)}"
            )
        return StepResult(float(self._seconds[place]), tokens)


class Replay(NamedTuple):
    """log: the simulator's decisions. outputs: int32 tokens by request id, of those that finished.

    diverged: why the replay could not go on; None if it reached the end.
    """

    log: DecisionLog
    outputs: dict[int, Tokens]
    diverged: str | None


def replay(
    requests: Iterable[Request],
    *,
    added: npt.NDArray[np.float64],
    seconds: npt.NDArray[np.float64],
    sampled: npt.NDArray[np.int64],
    tokens: Tokens,
    cache: CacheConfig,
    scheduler: SchedulerConfig,
    policy: SchedulingPolicy,
    eviction: EvictionPolicy,
) -> Replay:
    """Serve the requests as they were added, one step after the other, on one replica.

    requests: in the order in which the engine added them. added: float64, the instant of each on
    the engine's clock. seconds, sampled, tokens: see RecordedExecutor.
    """
    clock = Clock()
    log = DecisionLog()
    served = Scheduler(cache, scheduler, policy, eviction, log)
    outputs: dict[int, Tokens] = {}

    def on_left(sequence: Sequence) -> None:
        outputs[sequence.request.id] = sequence.output_tokens()

    replica = Replica(
        clock,
        0,
        served,
        RecordedExecutor(seconds, sampled, tokens),
        ahead=None,
        recorder=Recorder(0, served),
        on_left=on_left,
        check_invariants=False,
    )

    def arrivals() -> Generator[simpy.Event, Any, None]:
        for request, instant in zip(requests, added.tolist(), strict=True):
            if instant > clock.now:
                yield clock.at(instant, ARRIVALS)
            replica.submit(request)

    clock.process(arrivals())
    try:
        clock.run()
    except ReplayDiverged as reason:
        return Replay(log, outputs, str(reason))
    return Replay(log, outputs, None)
