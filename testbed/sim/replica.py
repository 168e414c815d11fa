"""One replica's loop: schedule, let the step's time pass, commit."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import numpy as np
import numpy.typing as npt
import simpy

from testbed.core.batch import Batch, StepResult
from testbed.core.decode_run import commit_run, quiet_steps
from testbed.core.recorder import Recorder
from testbed.core.request import Request, Sequence, State
from testbed.core.scheduler import Scheduler
from testbed.sim.clock import STEPS, Clock
from testbed.sim.latency import LatencyModel

Times = npt.NDArray[np.float64]


class Replica:
    """A scheduler on simulated hardware; also the ReplicaView that routers see.

    A run of decode steps in which nothing can change passes in one event. If a request arrives
    meanwhile, the steps that were over by then are booked first, so that every hook and every
    router meets the state that stepping would show, and the step in flight ends the run.
    """

    def __init__(
        self,
        clock: Clock,
        index: int,
        scheduler: Scheduler,
        latency: LatencyModel,
        recorder: Recorder,
        on_left: Callable[[Sequence], None],
        skip_quiet_steps: bool = True,
        check_invariants: bool = False,
    ) -> None:
        self.index = index
        self._clock = clock
        self._scheduler = scheduler
        self._latency = latency
        self._recorder = recorder
        self._on_left = on_left
        self._skip_quiet_steps = skip_quiet_steps
        self._check_invariants = check_invariants
        self._idle: simpy.Event | None = None
        # The step in flight, and when it and the quiet steps after it begin and end.
        self._batch: Batch | None = None
        self._times: Times | None = None
        self._process = clock.process(self._loop())

    @property
    def num_waiting(self) -> int:
        """Sequences in the queue."""
        return len(self._scheduler.waiting)

    @property
    def num_running(self) -> int:
        """Sequences in the batch."""
        return len(self._scheduler.running)

    def peek(self, request: Request) -> int:
        """Leading prompt tokens that are cached; O(prompt)."""
        self._catch_up()
        return self._scheduler.cache.peek(request.prompt, request.namespace)

    def submit(self, request: Request) -> None:
        """A request arrives now."""
        self._catch_up()
        sequence = self._scheduler.add(request, self._clock.now)
        sequence.routed_match_tokens = sequence.num_matched_tokens
        if sequence.state is State.REFUSED:
            self._left(sequence)
        elif self._idle is not None:
            self._clock.trigger(self._idle, self._clock.now, STEPS)
            self._idle = None

    def _loop(self) -> Generator[simpy.Event, Any, None]:
        while True:
            batch = self._scheduler.schedule(self._clock.now)
            if batch is None:
                yield from self._wait()
                continue
            steps = quiet_steps(self._scheduler, batch) if self._skip_quiet_steps else 1
            if steps == 1:
                yield from self._step(batch)
            else:
                yield from self._run(batch, steps)

    def _wait(self) -> Generator[simpy.Event, Any, None]:
        self._idle = simpy.Event(self._clock)
        release = self._scheduler.next_release
        if release is None:
            yield self._idle
        else:
            yield self._idle | self._clock.at(release, STEPS)
            self._idle = None

    def _step(self, batch: Batch) -> Generator[simpy.Event, Any, None]:
        start = self._clock.now
        end = start + self._latency.step_seconds(batch.shape)
        self._recorder.step(batch, start, end)
        yield self._clock.at(end, STEPS)
        self._commit(batch, end)

    def _run(self, batch: Batch, steps: int) -> Generator[simpy.Event, Any, None]:
        seconds = self._latency.decode_run(batch.shape, steps)
        times = np.add.accumulate(np.concatenate(([self._clock.now], seconds)))
        self._recorder.step(batch, float(times[0]), float(times[1]))
        self._batch, self._times = batch, times
        try:
            yield self._clock.at(float(times[-1]), STEPS)
        except simpy.Interrupt:
            # _catch_up left the step in flight; it was recorded there.
            batch, end = self._batch, float(self._times[1])
            self._batch = self._times = None
            yield self._clock.at(end, STEPS)
            self._commit(batch, end)
        else:
            self._batch = self._times = None
            self._commit_run(batch, times, steps)

    def _catch_up(self) -> None:
        """Book the steps of a run that ended before now, and end the run with the one in flight."""
        batch, times = self._batch, self._times
        if batch is None or times is None or len(times) == 2:
            return
        over = int(times[1:].searchsorted(self._clock.now))
        if over:
            self._commit_run(batch, times, over)
            following = self._scheduler.schedule(float(times[over]))
            assert following is not None
            self._recorder.step(following, float(times[over]), float(times[over + 1]))
            self._batch = following
        self._times = times[over : over + 2]
        self._process.interrupt()

    def _commit(self, batch: Batch, end: float) -> None:
        for sequence in self._scheduler.commit(batch, StepResult(end), end):
            self._left(sequence)
        self._check()

    def _commit_run(self, batch: Batch, times: Times, steps: int) -> None:
        finished, growth = commit_run(self._scheduler, batch, steps, float(times[steps]))
        self._recorder.repeats(times[1 : steps + 1], growth)
        for sequence in finished:
            self._left(sequence)
        self._check()

    def _left(self, sequence: Sequence) -> None:
        self._recorder.left(sequence)
        self._on_left(sequence)

    def _check(self) -> None:
        if self._check_invariants:
            self._scheduler.cache.check(self._scheduler.running)
