"""One replica's loop: schedule, let the step's time pass, commit."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import simpy

from testbed.core.batch import Batch, Executor, StepResult
from testbed.core.decode_run import DecodeRun, quiet_steps
from testbed.core.recorder import Recorder
from testbed.core.request import Request, Sequence
from testbed.core.scheduler import Scheduler
from testbed.sim.clock import STEPS, Clock
from testbed.sim.latency import LatencyModel

Times = npt.NDArray[np.float64]


class Replica:
    """A scheduler on simulated hardware; its load is what the ReplicaView of a router shows.

    `ahead` knows the times of decode steps in advance, so that a run of them in which nothing can
    change passes in one event; None steps one by one. If a request arrives meanwhile, the steps
    that were over by then are booked first, so that every hook and every router meets the state
    that stepping would show, and the step in flight ends the run.
    """

    def __init__(
        self,
        clock: Clock,
        index: int,
        scheduler: Scheduler,
        executor: Executor,
        ahead: LatencyModel | None,
        recorder: Recorder,
        on_left: Callable[[Sequence], None],
        check_invariants: bool,
        on_first_token: Callable[[Sequence], None] | None = None,
    ) -> None:
        self.index = index
        self._clock = clock
        self._scheduler = scheduler
        self._executor = executor
        self._ahead = ahead
        self._recorder = recorder
        self._on_left = on_left
        self._on_first_token = on_first_token
        self._check_invariants = check_invariants
        # Nothing runs; the next event then is a new or a delayed request, else the end of a step
        # or of a run.
        self._idle = True
        self._ending: simpy.Event | None = None
        self._flight: tuple[Batch, StepResult] | None = None
        # The run in flight, when its steps begin and end, and whether it was cut short.
        self._run: DecodeRun | None = None
        self._times: Times = np.empty(0)
        self._cut = False

    @property
    def num_waiting(self) -> int:
        """Sequences in the queue."""
        return len(self._scheduler.waiting)

    @property
    def num_running(self) -> int:
        """Sequences in the batch."""
        return len(self._scheduler.running)

    @property
    def num_pending_tokens(self) -> int:
        """Tokens of the queue, and what is left of the prefills under way."""
        left = sum(len(s.tokens) - s.num_computed_tokens for s in self._scheduler.prefilling)
        return self._scheduler.waiting.num_tokens + left

    @property
    def num_context_tokens(self) -> int:
        """Tokens whose KV the running sequences have."""
        self.catch_up()
        prefilled = sum(s.num_computed_tokens for s in self._scheduler.prefilling)
        return self._scheduler.decoding.context + prefilled

    @property
    def kv_usage(self) -> float:
        """The share of the pages that running sequences hold."""
        self.catch_up()
        return 1 - self._scheduler.cache.num_available_pages / self._scheduler.cache.num_pages

    def submit(self, request: Request) -> None:
        """A request arrives now."""
        self.catch_up()
        sequence = self._scheduler.add(request, self._clock.now)
        sequence.routed_match_tokens = sequence.num_matched_tokens
        self._turn_away()
        if self._idle:
            self._idle = False
            self._ending = self._clock.at(self._clock.now, STEPS, self._next)

    def catch_up(self) -> None:
        """Book the steps of a run that ended before now, and end the run with the one in flight."""
        run, times = self._run, self._times
        if run is None or self._cut:
            return
        over = int(times[1:].searchsorted(self._clock.now))
        self._times = times[: over + 2]
        self._recorder.repeats(self._times[1:], run.start(over + 1))
        if over:
            run.end(over, float(times[over]))
        self._cut = True
        self._ending = self._clock.at(float(self._times[-1]), STEPS, self._end_run)

    def _next(self, event: simpy.Event) -> None:
        """Start a step, or a run of quiet ones, or fall idle."""
        if event is not self._ending:
            return  # The delayed request that this event would have released came with another.
        scheduler, start = self._scheduler, self._clock.now
        batch = scheduler.schedule(start)
        self._turn_away()
        self._idle = batch is None
        if batch is None:
            release = scheduler.next_release
            if release is not None:
                self._ending = self._clock.at(release, STEPS, self._next)
            return
        steps = 1 if self._ahead is None else quiet_steps(scheduler, batch)
        if self._ahead is None or steps == 1:
            result = self._executor.execute(batch)
            end = start + result.seconds
            self._recorder.step(batch, start, end)
            self._flight = (batch, result)
            self._ending = self._clock.at(end, STEPS, self._end_step)
        else:
            self._times = times = np.empty(steps + 1)
            times[0] = start
            times[1:] = self._ahead.decode_run(batch.shape, steps)
            np.add.accumulate(times, out=times)
            self._recorder.step(batch, start, float(times[1]))
            self._run = DecodeRun(scheduler, batch)
            self._ending = self._clock.at(float(times[-1]), STEPS, self._end_run)

    def _end_step(self, event: simpy.Event) -> None:
        assert self._flight is not None
        batch, result = self._flight
        prefilling = [row.sequence for row in batch.prefills if row.sequence.first_token_time < 0]
        finished = self._scheduler.commit(batch, result, self._clock.now)
        if self._on_first_token is not None:
            for sequence in prefilling:
                if sequence.first_token_time >= 0:
                    self._on_first_token(sequence)
        self._leave(finished)
        self._next(event)

    def _end_run(self, event: simpy.Event) -> None:
        if event is not self._ending:
            return  # The run was cut short.
        assert self._run is not None
        steps = len(self._times) - 1
        if not self._cut:
            self._recorder.repeats(self._times[1:], self._run.start(steps))
        self._leave(self._run.end(steps, self._clock.now))
        self._run, self._cut = None, False
        self._next(event)

    def _turn_away(self) -> None:
        refused = self._scheduler.refused
        if refused:
            self._leave(refused)
            refused.clear()

    def _leave(self, sequences: list[Sequence]) -> None:
        for sequence in sequences:
            self._recorder.left(sequence)
            self._on_left(sequence)
        if self._check_invariants:
            self._scheduler.cache.check(self._scheduler.running)
