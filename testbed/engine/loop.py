"""The wall-clock loop: requests arrive, the scheduler decides, the model runs.

One iteration is one step. All that happens at a step's end happens at one instant: the requests
that arrived meanwhile are added, the step is committed, the next one is scheduled, in this order,
which is the simulator's. So the instants and tokens that are written down here suffice to replay
the run, decision by decision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf, nextafter
from time import perf_counter, sleep
from typing import Any, NamedTuple, Protocol

from testbed.core.batch import Batch, StepResult
from testbed.core.config import CacheConfig, SchedulerConfig
from testbed.core.cost import CostModel
from testbed.core.decisions import DecisionLog
from testbed.core.policy import EvictionPolicy, SchedulingPolicy
from testbed.core.recorder import Recorder
from testbed.core.records import (
    ADDED_COLUMNS,
    MEASURED_COLUMNS,
    REQUEST_COLUMNS,
    Columns,
    RunRecord,
    added_row,
    columns_of,
)
from testbed.core.request import Request, Sequence, State, Tokens
from testbed.core.scheduler import Scheduler
from testbed.core.source import OpenLoop, RequestSource
from testbed.engine.executor import StepParts


class StepExecutor(Protocol):
    """What the loop needs of an executor besides running a batch."""

    parts: StepParts

    def execute(self, batch: Batch) -> StepResult:
        """Run one step."""
        ...

    def refusal(self, request: Request) -> str | None:
        """Why the request cannot be served; None if it can."""
        ...

    def check_cache(self, cache: CacheConfig) -> None:
        """ValueError unless every page of such a cache can be used."""
        ...


class EngineRun(NamedTuple):
    """Everything that happened, and what a replay needs.

    added: by ADDED_COLUMNS, in order. measured: by MEASURED_COLUMNS. outputs: int32 by request id.
    """

    record: RunRecord
    log: DecisionLog
    added: Columns
    measured: Columns
    outputs: dict[int, Tokens]


class RunFailed(Exception):
    """A run ended by an error; `partial` is what was done before it."""

    def __init__(self, message: str, partial: EngineRun) -> None:
        super().__init__(message)
        self.partial = partial


class WallClock:
    """Seconds since it was made; with skip_idle, time spent waiting is skipped instead."""

    def __init__(self, skip_idle: bool) -> None:
        self._skip_idle = skip_idle
        self._origin = perf_counter()

    def now(self) -> float:
        """The time, skipped time included."""
        return perf_counter() - self._origin

    def wait_until(self, instant: float) -> None:
        """Let the time pass up to `instant`; at once if that is over."""
        remaining = instant - self.now()
        if remaining <= 0:
            return
        if self._skip_idle:
            self._origin -= remaining
        else:
            sleep(remaining)


def serve(
    requests: Iterable[Request] | RequestSource,
    *,
    executor: StepExecutor,
    cache: CacheConfig,
    scheduler: SchedulerConfig,
    policy: SchedulingPolicy,
    eviction: EvictionPolicy,
    cost: CostModel | None = None,
    skip_idle: bool = True,
    progress: Callable[[int], None] | None = None,
) -> EngineRun:
    """Serve the requests on one replica.

    requests: in arrival order, or a source that may wait for answers, as LM programs do. A request
    that the executor cannot serve is refused alone. progress: told after each request that leaves
    how many are over, or how many programs. skip_idle: do not wait for arrivals while nothing runs.

    Raises ValueError for configs that the executor cannot run; RunFailed, with all that was done
    before, if a step or a policy raises.
    """
    executor.check_cache(cache)
    if eviction.oracle:
        raise ValueError(f"eviction={type(eviction).__name__}: only a simulation knows the future")
    if scheduler.min_computed_tokens < 1:
        raise ValueError("min_computed_tokens=0: a model has to compute a token for its logits")
    log = DecisionLog()
    source = requests if isinstance(requests, RequestSource) else OpenLoop(requests)
    served = Scheduler(cache, scheduler, policy, eviction, log, cost)
    run = _Run(source, executor, served, log, cache, progress)
    try:
        run.serve(WallClock(skip_idle))
    except Exception as error:
        step = run.scheduler.step
        raise RunFailed(f"step {step}: {type(error).__name__}: {error}", run.result()) from error
    return run.result()


class _Run:
    """The state of one run."""

    def __init__(
        self,
        source: RequestSource,
        executor: StepExecutor,
        scheduler: Scheduler,
        log: DecisionLog,
        cache: CacheConfig,
        progress: Callable[[int], None] | None,
    ) -> None:
        self.scheduler = scheduler
        self._source = source
        self._executor = executor
        self._log = log
        self._cache = cache
        self._progress = progress
        self._recorder = Recorder(0, scheduler)
        self._added: list[tuple[Any, ...]] = []
        self._measured: list[tuple[Any, ...]] = []
        self._outputs: dict[int, Tokens] = {}

    def serve(self, clock: WallClock) -> None:
        """Until no request is left."""
        source, scheduler = self._source, self.scheduler
        now = 0.0
        flight: tuple[Batch, StepResult] | None = None
        while True:
            # One that is turned away may be asked for something else at once.
            while due := source.take(now):
                for request in due:
                    self._add(request, now)
            if flight is not None:
                self._leave(scheduler.commit(*flight, now), now)
            batch = scheduler.schedule(now)
            self._turn_away(now)
            if batch is not None:
                flight = batch, self._executor.execute(batch)
                # The simulator computes a step's end by the same sum, so a replay's instants are
                # these to the bit.
                seconds = clock.now() - now
                self._book(*flight, now, seconds)
                now += seconds
                continue
            flight = None
            times = [t for t in (source.next_time, scheduler.next_release) if t is not None]
            if not times:
                if source.unfinished is not None:
                    raise ValueError(source.unfinished)
                return
            due_time = min(times)
            if due_time > now:
                clock.wait_until(due_time)
                # Waking late is part of the next step's seconds.
                now = due_time
            else:
                # What left just now is answered by something new. A replay sees arrivals before
                # the step that ends at the same instant, so it is an instant of its own.
                now = max(clock.now(), nextafter(now, inf))

    def result(self) -> EngineRun:
        """What happened so far."""
        record = RunRecord(
            requests=columns_of(self._recorder.requests(), REQUEST_COLUMNS),
            steps=self._recorder.steps(),
            decisions=self._log.columns(),
            counters={
                "num_pages": self._cache.num_pages,
                "page_size": self._cache.page_size,
                "replicas": 1,
            },
        )
        return EngineRun(
            record,
            self._log,
            columns_of(self._added, ADDED_COLUMNS),
            columns_of(self._measured, MEASURED_COLUMNS),
            self._outputs,
        )

    def _add(self, request: Request, now: float) -> None:
        reason = self._executor.refusal(request)
        self._added.append(added_row(request, now, reason or ""))
        if reason is not None:
            refused = Sequence(request, -1)
            refused.state, refused.refusal = State.REFUSED, reason
            self._log.refuse(self.scheduler.step, refused)
            self._leave([refused], now)
            return
        sequence = self.scheduler.add(request, now)
        sequence.routed_match_tokens = sequence.num_matched_tokens
        self._turn_away(now)

    def _turn_away(self, now: float) -> None:
        self._leave(self.scheduler.refused, now)
        self.scheduler.refused.clear()

    def _leave(self, sequences: list[Sequence], now: float) -> None:
        for sequence in sequences:
            self._recorder.left(sequence)
            output = None
            if sequence.state is State.FINISHED:
                output = self._outputs[sequence.request.id] = sequence.output_tokens()
            self._source.left(sequence.request.id, output, now)
            if self._progress is not None:
                self._progress(self._source.ended)

    def _book(self, batch: Batch, result: StepResult, start: float, seconds: float) -> None:
        self._recorder.step(batch, start, start + seconds)
        assert result.tokens is not None
        self._measured.append(
            (batch.step, seconds, *self._executor.parts, *batch.shape, result.tokens)
        )
