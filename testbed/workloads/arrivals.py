"""When requests arrive, or programs start: any workload can be given other times than its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from testbed.core.program import Program, ProgramRunner
from testbed.core.request import Request
from testbed.core.source import ClosedLoop, RequestSource
from testbed.workloads.parameters import require_between, require_int, require_rate
from testbed.workloads.workload import ProgramWorkload

Arriving = TypeVar("Arriving", Request, Program)
Arriving_co = TypeVar("Arriving_co", Request, Program, covariant=True)
Times = npt.NDArray[np.float64]

MIN_CV, MAX_CV = 0.001, 100.0
"""Beyond them gamma gaps lose their meaning to rounding."""


class TimedWorkload(Protocol[Arriving_co]):
    """A Workload or a ProgramWorkload."""

    @property
    def name(self) -> str: ...

    @property
    def skipped_lines(self) -> int: ...

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Arriving_co]: ...


class Arrivals(ABC):
    """A rule that gives the requests, or programs, of a workload, in their order, new times."""

    @abstractmethod
    def retime(self, workload: TimedWorkload[Arriving]) -> Iterator[Arriving]:
        """The workload's items with arrival times in seconds that never decrease."""


@dataclass(frozen=True)
class TraceArrivals(Arrivals):
    """The workload's own times, divided by `speedup`."""

    speedup: float = 1.0

    def __post_init__(self) -> None:
        require_rate(self, "speedup")

    def retime(self, workload: TimedWorkload[Arriving]) -> Iterator[Arriving]:
        for item in workload:
            yield replace(item, arrival=item.arrival / self.speedup)


class TimedArrivals(Arrivals):
    """Arrivals that look at the number of requests alone, never at the requests.

    The first k times are the same for any number of requests, and for the same seed the times at
    two rates differ by the ratio of the rates only: comparisons are paired.
    """

    @abstractmethod
    def times(self, count: int) -> Times:
        """float64[count], seconds, never decreasing."""

    def retime(self, workload: TimedWorkload[Arriving]) -> Iterator[Arriving]:
        times: list[float] = self.times(len(workload)).tolist()
        for item, time in zip(workload, times, strict=True):
            yield replace(item, arrival=time)


@dataclass(frozen=True)
class PoissonArrivals(TimedArrivals):
    """Independent exponential gaps, `rate` requests per second; the first gap starts at 0."""

    rate: float
    seed: int = 0

    def __post_init__(self) -> None:
        require_rate(self, "rate")
        require_int(self, "seed", 0)

    def times(self, count: int) -> Times:
        return np.cumsum(gamma_gaps(np.random.default_rng(self.seed), count, 1.0)) / self.rate


@dataclass(frozen=True)
class GammaArrivals(TimedArrivals):
    """Independent gamma gaps, `rate` requests per second; the first gap starts at 0.

    cv: standard deviation of the gaps over their mean. 1 is Poisson, more is burstier;
    from 0.001 to 100.
    """

    rate: float
    cv: float
    seed: int = 0

    def __post_init__(self) -> None:
        require_rate(self, "rate")
        require_between(self, "cv", MIN_CV, MAX_CV)
        require_int(self, "seed", 0)

    def times(self, count: int) -> Times:
        return np.cumsum(gamma_gaps(np.random.default_rng(self.seed), count, self.cv)) / self.rate


@dataclass(frozen=True)
class ConstantArrivals(TimedArrivals):
    """Equal gaps, `rate` requests per second, the first request at 0."""

    rate: float

    def __post_init__(self) -> None:
        require_rate(self, "rate")

    def times(self, count: int) -> Times:
        return np.arange(count) / self.rate


@dataclass(frozen=True)
class AllAtOnce(TimedArrivals):
    """Every request at 0: an offline batch."""

    def times(self, count: int) -> Times:
        return np.zeros(count)


@dataclass(frozen=True)
class ClosedLoopArrivals(AllAtOnce):
    """`concurrency` clients, each of whom asks again, or starts a program, when one has ended."""

    concurrency: int

    def __post_init__(self) -> None:
        require_int(self, "concurrency", 1)


@dataclass(frozen=True)
class Retimed(Generic[Arriving]):
    """A workload whose requests arrive, or whose programs start, as `arrivals` says."""

    workload: TimedWorkload[Arriving]
    arrivals: Arrivals

    @property
    def name(self) -> str:
        return self.workload.name

    @property
    def skipped_lines(self) -> int:
        return self.workload.skipped_lines

    def __len__(self) -> int:
        return len(self.workload)

    def __iter__(self) -> Iterator[Arriving]:
        return self.arrivals.retime(self.workload)

    def requests(self) -> Iterable[Request] | RequestSource:
        """What drives a backend: requests, or a source where what comes depends on what left."""
        arrivals = self.arrivals
        concurrency = arrivals.concurrency if isinstance(arrivals, ClosedLoopArrivals) else None
        if isinstance(self.workload, ProgramWorkload):
            return ProgramRunner(arrivals.retime(self.workload), concurrency, self.workload.hints)
        retimed: Any = self
        return retimed if concurrency is None else ClosedLoop(retimed, concurrency)


def gamma_gaps(generator: np.random.Generator, count: int, cv: float) -> Times:
    """float64[count] gamma gaps of mean 1 and coefficient of variation `cv`; 1 is exponential."""
    if cv == 1:
        return generator.standard_exponential(count)
    return generator.standard_gamma(cv**-2, count) * cv**2
