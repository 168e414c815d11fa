"""Simulation: times that no clock holds, and what a run counts."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from experiments.simulation import Simulation, TimeError
from testbed.core.config import CacheConfig, SchedulerConfig
from testbed.core.request import Request
from testbed.policies import registry
from testbed.sim.latency import FixedLatency
from testbed.workloads import (
    Arrivals,
    ClosedLoopArrivals,
    Retimed,
    TimedArrivals,
    TraceArrivals,
)
from testbed.workloads.programs import JudgePrograms


class Late:
    """Two requests, the second of them at `time`."""

    name = "late"
    skipped_lines = 0

    def __init__(self, time: float) -> None:
        self._times = (0.0, time)

    def __len__(self) -> int:
        return len(self._times)

    def __iter__(self) -> Any:
        prompt = np.arange(8, dtype=np.int32)
        for i, time in enumerate(self._times):
            yield Request(id=i, prompt=prompt, output=prompt, arrival=time)


def simulation(workload: Any, arrivals: Arrivals) -> Simulation:
    return Simulation(
        workload=Retimed(workload, arrivals),
        cache=CacheConfig(num_pages=10_000, page_size=16),
        scheduler=SchedulerConfig(),
        policy=lambda: registry.scheduling("fcfs"),
        eviction=lambda: registry.eviction("lru"),
        routing=lambda: registry.routing("round_robin"),
        latency=FixedLatency(1.0),
        kv_bytes_per_token=1,
    )


class Spread(TimedArrivals):
    """All requests at 0 but the last, which is at `end`."""

    def __init__(self, end: float) -> None:
        self._end = end

    def times(self, count: int) -> Any:
        return np.append(np.zeros(count - 1), self._end)


def test_drawn_times_beyond_the_clock_are_refused_before_the_run() -> None:
    simulation(Late(0.0), Spread(1e9)).check()
    for end in (1.25e9, math.inf, math.nan):
        due = re.escape(f"arrivals: something is due at {end:g} s; 1e+09 s at most")
        with pytest.raises(TimeError, match=due):
            simulation(Late(0.0), Spread(end)).check()


def test_a_workload_s_own_time_beyond_the_clock_ends_the_run() -> None:
    assert simulation(Late(1e9), TraceArrivals()).run().record.requests["arrival_s"].max() == 1e9
    with pytest.raises(TimeError, match=r"arrivals: something is due at 1\.1e\+09 s"):
        simulation(Late(1.1e9), TraceArrivals()).run()
    with pytest.raises(TimeError, match=r"arrivals: something is due at 2e\+09 s"):
        simulation(JudgePrograms(num_programs=2), Spread(2e9)).run()


def test_an_oracle_of_evictions_needs_to_know_what_comes() -> None:
    def with_belady(workload: Any, arrivals: Arrivals) -> Simulation:
        return replace(simulation(workload, arrivals), eviction=lambda: registry.eviction("belady"))

    with_belady(Late(0.0), TraceArrivals()).check()
    for workload, arrivals in (
        (Late(0.0), ClosedLoopArrivals(concurrency=2)),
        (JudgePrograms(num_programs=2), TraceArrivals()),
    ):
        with pytest.raises(ValueError, match="eviction=Belady: an oracle has to know all requests"):
            with_belady(workload, arrivals).check()


def test_a_run_counts_requests_or_programs() -> None:
    assert simulation(Late(0.0), TraceArrivals()).unit == "requests"
    assert simulation(JudgePrograms(num_programs=2), TraceArrivals()).unit == "programs"
