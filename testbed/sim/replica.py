"""One replica's loop: schedule, let the step's time pass, commit."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import numpy as np
import numpy.typing as npt
import simpy

from testbed.core.batch import Batch, StepResult
from testbed.core.decode_run import DecodeRun, quiet_steps
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
        # The run in flight, unless it is down to its last step, and when its steps begin and end.
        self._run: DecodeRun | None = None
        self._times: Times = np.empty(0)
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
            self._leave([sequence])
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
                yield from self._repeat(batch, steps)

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
        self._leave(self._scheduler.commit(batch, StepResult(end - start), end))

    def _repeat(self, batch: Batch, steps: int) -> Generator[simpy.Event, Any, None]:
        seconds = self._latency.decode_run(batch.shape, steps)
        times = np.add.accumulate(np.concatenate(([self._clock.now], seconds)))
        self._recorder.step(batch, float(times[0]), float(times[1]))
        run = DecodeRun(self._scheduler, batch)
        self._run, self._times = run, times
        try:
            yield self._clock.at(float(times[-1]), STEPS)
        except simpy.Interrupt:
            # _catch_up left one step in flight.
            steps = len(self._times) - 1
            yield self._clock.at(float(self._times[-1]), STEPS)
        else:
            self._recorder.repeats(times[1:], run.start(steps))
        finally:
            self._run = None
        self._leave(run.end(steps, float(times[steps])))

    def _catch_up(self) -> None:
        """Book the steps of a run that ended before now, and end the run with the one in flight."""
        run, times = self._run, self._times
        if run is None:
            return
        self._run = None
        over = int(times[1:].searchsorted(self._clock.now))
        self._times = times[: over + 2]
        self._recorder.repeats(times[1 : over + 2], run.start(over + 1))
        if over:
            run.end(over, float(times[over]))
        self._process.interrupt()

    def _leave(self, sequences: list[Sequence]) -> None:
        for sequence in sequences:
            self._recorder.left(sequence)
            self._on_left(sequence)
        if self._check_invariants:
            self._scheduler.cache.check(self._scheduler.running)
