from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from testbed.workloads import (
    AllAtOnce,
    ConstantArrivals,
    GammaArrivals,
    LengthsWorkload,
    MultiClientWorkload,
    PoissonArrivals,
    RagWorkload,
    Retimed,
    TimedArrivals,
    TraceArrivals,
    Workload,
)


def arrivals_of(workload: Workload) -> list[float]:
    return [request.arrival for request in workload]


def test_only_arrival_times_change() -> None:
    plain = RagWorkload(num_requests=5, tenants=2)
    retimed = Retimed(plain, PoissonArrivals(rate=2.0))
    assert (len(retimed), retimed.name, retimed.skipped_lines) == (5, "rag", 0)
    for before, after in zip(plain, retimed, strict=True):
        assert (before.id, before.client) == (after.id, after.client)
        assert before.prompt.tolist() == after.prompt.tolist()
        assert before.output.tolist() == after.output.tolist()
    assert arrivals_of(retimed) == arrivals_of(retimed)


def test_trace_arrivals_divide_the_workloads_own_times() -> None:
    clients = MultiClientWorkload(duration=5.0)
    own = arrivals_of(clients)
    assert arrivals_of(Retimed(clients, TraceArrivals())) == own
    assert arrivals_of(Retimed(clients, TraceArrivals(speedup=4.0))) == [t / 4 for t in own]


def test_constant_and_all_at_once() -> None:
    three = LengthsWorkload([1, 2, 3], [1, 1, 1])
    assert arrivals_of(Retimed(three, ConstantArrivals(rate=4.0))) == [0.0, 0.25, 0.5]
    assert arrivals_of(Retimed(three, AllAtOnce())) == [0.0, 0.0, 0.0]
    assert all(type(t) is float for t in arrivals_of(Retimed(three, ConstantArrivals(rate=4.0))))


@pytest.mark.parametrize(
    ("arrivals", "cv"),
    [
        (PoissonArrivals(rate=8.0, seed=1), 1.0),
        (GammaArrivals(rate=8.0, cv=0.5, seed=1), 0.5),
        (GammaArrivals(rate=8.0, cv=3.0, seed=1), 3.0),
    ],
)
def test_gaps_have_the_rate_and_the_variation_asked_for(arrivals: TimedArrivals, cv: float) -> None:
    count = 40_000
    gaps = np.diff(arrivals.times(count), prepend=0.0)
    assert gaps.min() >= 0
    # The mean's standard error is cv / sqrt(count) = 0.015 of it at most.
    assert gaps.mean() * 8.0 == pytest.approx(1.0, abs=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.1)


def test_gamma_with_cv_1_is_poisson() -> None:
    gamma, poisson = GammaArrivals(rate=2.0, cv=1.0, seed=3), PoissonArrivals(rate=2.0, seed=3)
    assert gamma.times(10).tolist() == poisson.times(10).tolist()


@pytest.mark.parametrize(
    ("slow", "fast"),
    [
        (PoissonArrivals(1.0, seed=7), PoissonArrivals(4.0, seed=7)),
        (GammaArrivals(1.0, 2.0, seed=7), GammaArrivals(4.0, 2.0, seed=7)),
        (ConstantArrivals(1.0), ConstantArrivals(4.0)),
    ],
)
def test_arrivals_are_paired_across_rates_counts_and_workloads(
    slow: TimedArrivals, fast: TimedArrivals
) -> None:
    assert (slow.times(50) / 4.0).tolist() == fast.times(50).tolist()
    assert slow.times(20).tolist() == slow.times(50)[:20].tolist()
    rag = RagWorkload(num_requests=3, seed=1)
    lengths = LengthsWorkload([9, 8, 7], [1, 1, 1], seed=2)
    assert arrivals_of(Retimed(rag, slow)) == arrivals_of(Retimed(lengths, slow))


def test_another_seed_gives_other_times() -> None:
    times = [PoissonArrivals(1.0, seed).times(5).tolist() for seed in (0, 1)]
    assert times[0] != times[1]


@pytest.mark.parametrize(
    ("kind", "parameters", "message"),
    [
        (PoissonArrivals, {"rate": 1e-320}, r"PoissonArrivals\.rate=1e-320: a finite number above"),
        (ConstantArrivals, {"rate": 10**400}, r"ConstantArrivals\.rate=1000"),
        (TraceArrivals, {"speedup": 1e-300}, r"TraceArrivals\.speedup=1e-300: a finite number"),
        (PoissonArrivals, {"rate": 0}, r"PoissonArrivals\.rate=0: a finite number above 0"),
        (PoissonArrivals, {"rate": -1.0}, r"PoissonArrivals\.rate=-1\.0"),
        (PoissonArrivals, {"rate": float("inf")}, r"PoissonArrivals\.rate=inf"),
        (PoissonArrivals, {"rate": True}, r"PoissonArrivals\.rate=True"),
        (PoissonArrivals, {"rate": "2"}, r"PoissonArrivals\.rate='2'"),
        (PoissonArrivals, {"rate": 1.0, "seed": -1}, r"PoissonArrivals\.seed=-1: a whole number"),
        (GammaArrivals, {"rate": 0, "cv": 1}, r"GammaArrivals\.rate=0"),
        (GammaArrivals, {"rate": 1, "cv": 0}, r"GammaArrivals\.cv=0: a number from 0\.001 to 100"),
        (GammaArrivals, {"rate": 1, "cv": -1}, r"GammaArrivals\.cv=-1"),
        (ConstantArrivals, {"rate": 0}, r"ConstantArrivals\.rate=0"),
        (TraceArrivals, {"speedup": 0}, r"TraceArrivals\.speedup=0"),
    ],
)
def test_bad_parameters(kind: Any, parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kind(**parameters)
