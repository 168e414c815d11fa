"""RequestSource: who asks next. Open loops ask come what may; closed loops wait for answers.

Like everything in the core a source reads no clock: `now` is an argument. A backend takes what is
due, serves it, and reports what left.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import replace
from math import inf

from testbed.core.request import Request, Tokens


class RequestSource(ABC):
    """Gives a backend its requests, and hears of each that leaves.

    reacts: whether what leaves changes what comes; if not, next_time is certain.
    """

    reacts = True

    @property
    @abstractmethod
    def ended(self) -> int:
        """How many are over, of what the workload counts: requests, or whole programs."""

    @property
    @abstractmethod
    def next_time(self) -> float | None:
        """When something is due, as far as is known now; None if nothing is."""

    @property
    def unfinished(self) -> str | None:
        """What has not ended although nothing is due and nothing is being served; None if all has.

        Backends ask at the end of a run.
        """
        return None

    @abstractmethod
    def take(self, now: float) -> list[Request]:
        """The requests that are due by `now`, which never goes back."""

    @abstractmethod
    def left(self, request_id: int, output: Tokens | None, now: float) -> None:
        """A request finished with this output, or was refused (None)."""


class OpenLoop(RequestSource):
    """Requests in arrival order, whatever becomes of the others.

    take() raises ValueError for a request whose arrival is before that of the one ahead of it.
    """

    reacts = False

    def __init__(self, requests: Iterable[Request]) -> None:
        self._requests = iter(requests)
        self._upcoming = next(self._requests, None)
        self._ended = 0

    @property
    def ended(self) -> int:
        """Requests that left."""
        return self._ended

    @property
    def next_time(self) -> float | None:
        """The arrival of the next request."""
        return None if self._upcoming is None else self._upcoming.arrival

    def take(self, now: float) -> list[Request]:
        """The requests whose arrival is not after `now`."""
        due: list[Request] = []
        request = self._upcoming
        while request is not None and request.arrival <= now:
            due.append(request)
            upcoming = next(self._requests, None)
            if upcoming is not None and upcoming.arrival < request.arrival:
                raise ValueError(
                    f"request {upcoming.id}: arrival {upcoming.arrival} is before the one ahead "
                    "of it"
                )
            request = upcoming
        self._upcoming = request
        return due

    def left(self, request_id: int, output: Tokens | None, now: float) -> None:
        """One more is over."""
        self._ended += 1


class ClosedLoop(RequestSource):
    """At most `concurrency` requests at a time: the next one is asked when one has left.

    A request's own arrival is the earliest time at which it is asked; what it gets is the time at
    which it is. ValueError for a concurrency below 1.
    """

    def __init__(self, requests: Iterable[Request], concurrency: int) -> None:
        if type(concurrency) is not int or concurrency < 1:
            raise ValueError(f"concurrency={concurrency}: a whole number from 1 is needed")
        self._requests = iter(requests)
        self._upcoming = next(self._requests, None)
        self._free = concurrency
        self._ended = 0
        self._last_leave = -inf

    @property
    def ended(self) -> int:
        """Requests that left."""
        return self._ended

    @property
    def next_time(self) -> float | None:
        """When the next request is asked; None while too many are being served."""
        if self._upcoming is None or not self._free:
            return None
        return max(self._upcoming.arrival, self._last_leave)

    def take(self, now: float) -> list[Request]:
        """As many as there is room for, of those whose own arrival is not after `now`."""
        due: list[Request] = []
        while (time := self.next_time) is not None and time <= now:
            assert self._upcoming is not None
            due.append(replace(self._upcoming, arrival=time))
            self._upcoming = next(self._requests, None)
            self._free -= 1
        return due

    def left(self, request_id: int, output: Tokens | None, now: float) -> None:
        """Room for one more."""
        self._ended += 1
        self._free += 1
        self._last_leave = now
