"""Rates that change over time, by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.workloads import Client, MultiClientWorkload, Phase
from testbed.workloads.synthetic.phases import arrivals_of


def arrivals(units: list[float], rate: float, phases: list[Phase], duration: float) -> list[float]:
    return arrivals_of(np.array(units), rate, phases, duration).tolist()


def test_nothing_arrives_while_it_is_off() -> None:
    phases = [Phase(10, 1), Phase(5, 0)]
    # Two a second: the 20 units of each cycle are spread over its first 10 seconds.
    times = arrivals([1, 19, 21, 39, 41], 2.0, phases, 100.0)
    assert times == pytest.approx([0.5, 9.5, 15.5, 24.5, 30.5])


def test_it_may_begin_off() -> None:
    assert arrivals([0, 1, 2], 1.0, [Phase(4, 0), Phase(1, 2)], 20.0) == pytest.approx([4, 4.5, 9])


def test_a_ramp_sends_as_much_as_its_area() -> None:
    # The factor rises from 0 to 2 within 10 s: t^2 / 10 units by time t.
    times = arrivals([0.1, 0.9, 2.5, 10.0], 1.0, [Phase(10, 0, 2)], 9.9)
    assert times == pytest.approx([1, 3, 5])
    falling = arrivals([1.9, 9.9], 1.0, [Phase(10, 2, 0)], 9.9)
    assert falling == pytest.approx([1, 9])


def test_a_shift_changes_the_gap() -> None:
    times = arrivals([float(k) for k in range(9)], 1.0, [Phase(4, 1), Phase(4, 2)], 7.0)
    assert times == pytest.approx([0, 1, 2, 3, 4, 4.5, 5, 5.5, 6])


@given(
    st.lists(
        st.builds(
            Phase,
            st.floats(0.5, 5),
            st.sampled_from([0.0, 0.5, 3.0]),
            st.sampled_from([None, 0.0, 2.0]),
        ),
        min_size=1,
        max_size=4,
    ),
    st.floats(1, 40),
)
def test_times_rise_and_match_the_area_below_them(phases: list[Phase], duration: float) -> None:
    units = np.arange(0.25, 400.0)
    times = arrivals_of(units, 2.0, phases, duration)
    assert np.all(np.diff(times) >= -1e-9) and np.all(times < duration)
    cycle = sum(phase.seconds for phase in phases)
    for unit, time in zip(units, times.tolist(), strict=False):
        area, left = 0.0, time
        area += sum(sent(p, p.seconds) for p in phases) * int(left // cycle)
        left -= cycle * int(left // cycle)
        for phase in phases:
            area += sent(phase, min(left, phase.seconds))
            left = max(0.0, left - phase.seconds)
        assert 2.0 * area == pytest.approx(unit, abs=1e-5)


def sent(phase: Phase, seconds: float) -> float:
    end = phase.factor if phase.end_factor is None else phase.end_factor
    return phase.factor * seconds + (end - phase.factor) * seconds**2 / (2 * phase.seconds)


def test_a_client_follows_its_phases() -> None:
    on_off = Client("a", 2.0, phases=[Phase(60, 1), Phase(60, 0)])
    steady = Client("b", 1.0)
    times = [r.arrival for r in MultiClientWorkload([on_off, steady], 240.0) if r.client == "a"]
    assert len(times) == 240
    assert all(t % 120 < 60 for t in times)
    assert np.allclose(np.diff(times)[:100], 0.5)


def test_a_client_without_phases_is_as_it_was() -> None:
    plain = MultiClientWorkload([Client("a", 3.0, cv=1.0)], 30.0)
    always = MultiClientWorkload([Client("a", 3.0, cv=1.0, phases=[Phase(7, 1)])], 30.0)
    assert [r.arrival for r in always] == pytest.approx([r.arrival for r in plain])


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Phase(0, 1), r"Phase\.seconds=0"),
        (lambda: Phase(1, -1), r"Phase\.factor=-1"),
        (lambda: Phase(1, 1, float("nan")), r"Phase\.end_factor=nan"),
        (lambda: Client("a", 1.0, phases=[(1, 2)]), r"Client\.phases: \(1, 2\) is not a Phase"),  # type: ignore[list-item]
    ],
)
def test_bad_phases(build: object, message: str) -> None:
    assert callable(build)
    with pytest.raises(ValueError, match=message):
        build()


def test_a_client_that_is_always_off_sends_nothing() -> None:
    with pytest.raises(ValueError, match="nobody sends a request"):
        MultiClientWorkload([Client("a", 1.0, phases=[Phase(5, 0)])], 30.0)
