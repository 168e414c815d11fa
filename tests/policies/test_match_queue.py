"""MatchQueue against sorting everybody."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from testbed.core.request import Sequence
from testbed.core.views import SequenceView
from testbed.policies.scheduling.match_queue import MatchQueue
from tests.core.building import make_request


def views(count: int) -> list[SequenceView]:
    return [SequenceView(Sequence(make_request(n, [1]), n)) for n in range(count)]


def test_memory_is_bounded_by_who_waits_not_by_what_happened() -> None:
    queue, known = MatchQueue(), views(10)
    for turn in range(5000):
        view = known[turn % 10]
        view._sequence.num_matched_tokens = turn
        queue.put(view)
        assert len(queue._heap) <= 64 + 2 * 10 + 1


Move = tuple[int, int | None]
"""A sequence's number, and its match, or None to discard it."""
moves = st.lists(st.tuples(st.integers(0, 5), st.one_of(st.none(), st.integers(0, 3))), max_size=60)


@given(moves)
def test_the_queue_is_sorted_whatever_changes(moves: list[Move]) -> None:
    queue, known = MatchQueue(), views(6)
    expected: dict[int, tuple[int, int]] = {}
    for number, match in moves:
        view = known[number]
        if match is None:
            queue.discard(view)
            expected.pop(number, None)
        else:
            view._sequence.num_matched_tokens = match
            queue.put(view)
            expected[number] = (-match, number)
        best = sorted(expected, key=lambda n: expected[n])
        assert len(queue) == len(expected)
        assert [view.index for view in queue.in_order()] == best
        first = queue.first()
        assert (first is None) == (not best)
        assert first is None or first.item is known[best[0]]
        assert [view in queue for view in known] == [n in expected for n in range(6)]


def test_the_queue_stays_small_however_often_matches_change() -> None:
    queue, (view,) = MatchQueue(), views(1)
    for match in range(1000):
        view._sequence.num_matched_tokens = match
        queue.put(view)
    assert len(queue._heap) <= 66
    first = queue.first()
    assert first is not None and first.item is view
