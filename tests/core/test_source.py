"""Sources of plain requests: open loops and closed ones."""

from __future__ import annotations

import pytest

from testbed.core.request import Request
from testbed.core.source import ClosedLoop, OpenLoop
from tests.core.building import make_request


def requests_at(*arrivals: float) -> list[Request]:
    return [make_request(n, [n], arrival=arrival) for n, arrival in enumerate(arrivals)]


def taken(source: OpenLoop | ClosedLoop, now: float) -> list[tuple[int, float]]:
    return [(request.id, request.arrival) for request in source.take(now)]


def test_an_open_loop_gives_what_has_arrived() -> None:
    source = OpenLoop(requests_at(1.0, 1.0, 2.5))
    assert source.next_time == 1.0
    assert taken(source, 0.9) == []
    assert taken(source, 1.0) == [(0, 1.0), (1, 1.0)]
    assert source.next_time == 2.5
    assert taken(source, 9.0) == [(2, 2.5)]
    assert (source.next_time, source.ended) == (None, 0)
    source.left(0, None, 9.0)
    assert source.ended == 1


def test_an_open_loop_refuses_arrivals_out_of_order() -> None:
    source = OpenLoop(requests_at(2.0, 1.0))
    with pytest.raises(ValueError, match=r"request 1: arrival 1\.0 is before the one ahead of it"):
        source.take(2.0)


def test_a_closed_loop_asks_when_one_has_left() -> None:
    source = ClosedLoop(requests_at(0.0, 0.0, 0.0, 0.0), concurrency=2)
    assert taken(source, 0.0) == [(0, 0.0), (1, 0.0)]
    assert source.next_time is None
    source.left(1, None, 3.0)
    assert source.next_time == 3.0
    # Late, as the engine is at the end of a step: the wait counts from when it could ask.
    assert taken(source, 3.5) == [(2, 3.0)]
    source.left(0, None, 4.0)
    source.left(2, None, 5.0)
    assert taken(source, 5.0) == [(3, 5.0)]
    assert (source.next_time, source.ended) == (None, 3)


def test_a_closed_loop_waits_for_a_request_s_own_arrival() -> None:
    source = ClosedLoop(requests_at(0.0, 7.0), concurrency=1)
    assert taken(source, 0.0) == [(0, 0.0)]
    source.left(0, None, 2.0)
    assert source.next_time == 7.0
    assert taken(source, 6.9) == []
    assert taken(source, 7.0) == [(1, 7.0)]


def test_a_closed_loop_needs_somebody_to_ask() -> None:
    with pytest.raises(ValueError, match="concurrency=0: a whole number from 1 is needed"):
        ClosedLoop([], concurrency=0)
