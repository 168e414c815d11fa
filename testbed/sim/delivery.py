"""Delivery: brings what a source asks to the router, and the router's choice to its replica."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import simpy

from testbed.core.request import Request, Tokens
from testbed.core.source import RequestSource
from testbed.sim.clock import ARRIVALS, LOOKS, Clock
from testbed.sim.replica import Replica
from testbed.sim.sight import Sight


class Delivery:
    """The clients' side of the world.

    Where the next arrival is certain, the router looks at a stale fleet only before an arrival.
    Where what leaves may ask again at once, it looks before every event while anything is being
    served; what it sees is the same.
    """

    def __init__(
        self, clock: Clock, source: RequestSource, sight: Sight, replicas: Sequence[Replica]
    ) -> None:
        self.num_arrived = 0
        self._clock = clock
        self._source = source
        self._sight = sight
        self._replicas = replicas
        self._num_left = 0
        self._waking: simpy.Event | None = None
        self._waking_time = 0.0
        self._looks = False
        if source.reacts:
            self._arm()
        else:
            clock.process(self._open_loop())

    def left(self, request_id: int, output: Tokens | None) -> None:
        """A request finished with this output, or was refused (None)."""
        self._num_left += 1
        self._source.left(request_id, output, self._clock.now)
        if self._source.reacts:
            self._arm()

    def _open_loop(self) -> Generator[simpy.Event, Any, None]:
        clock, source = self._clock, self._source
        while (arrival := source.next_time) is not None:
            look = self._sight.next_look(arrival)
            if look is not None:
                if look > clock.now:
                    yield clock.at(look, ARRIVALS)
                self._sight.look()
            if arrival > clock.now:
                yield clock.at(arrival, ARRIVALS)
            for request in source.take(clock.now):
                self._submit(request)

    def _arm(self) -> None:
        """Wake when the next request is due, which may have become sooner."""
        due = self._source.next_time
        if due is None or (self._waking is not None and self._waking_time <= due):
            return
        self._waking_time = max(due, self._clock.now)
        self._waking = self._clock.at(self._waking_time, ARRIVALS, self._wake)

    def _wake(self, event: simpy.Event) -> None:
        if event is not self._waking:
            return  # Something else was due sooner.
        self._waking = None
        now = self._clock.now
        if self._sight.next_look(now) is not None:
            # Nothing was being served since that look was due: the fleet is as it was then.
            self._sight.look()
        for request in self._source.take(now):
            if request.output is None:
                raise ValueError(
                    f"request {request.id} of {request.program}: output=None; a simulation has to "
                    "be told what the model says"
                )
            self._submit(request)
        self._arm()
        self._look_on()

    def _look_on(self) -> None:
        if self._looks or self.num_arrived == self._num_left:
            return
        look = self._sight.look_before(self._clock.peek())
        if look is not None:
            self._looks = True
            self._clock.at(look, LOOKS, self._look)

    def _look(self, event: simpy.Event) -> None:
        self._looks = False
        if self._sight.next_look(self._clock.now) is not None:
            self._sight.look()
        self._look_on()

    def _submit(self, request: Request) -> None:
        self.num_arrived += 1
        self._replicas[self._sight.choose(request, self._clock.now)].submit(request)
