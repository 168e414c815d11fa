"""Who needs a page at which decode step, against looking at every member."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from testbed.core.decode_set import DecodeSet
from testbed.core.request import Sequence
from tests.core.building import make_request


def decoding(computed: int, pages: int, index: int = 0) -> Sequence:
    sequence = Sequence(make_request(index, range(computed)), index)
    sequence.num_computed_tokens = computed
    sequence.num_pages = pages
    return sequence


def test_a_page_is_due_when_the_last_one_is_full() -> None:
    members = DecodeSet(page_size=4)
    full, two_left = decoding(8, 2, 0), decoding(6, 2, 1)
    members.join(full)
    members.join(two_left)
    assert (members.num_due(), members.context, len(members)) == (1, 14, 2)
    assert members.take_due() == [full]
    members.advance(1)
    assert (members.num_due(), members.context) == (0, 16)
    assert members.take_due(ahead=1) == [two_left]
    members.leave(full)
    assert list(members.members) == [two_left]


@given(
    st.sampled_from([1, 2, 4]),
    st.lists(st.tuples(st.sampled_from(["join", "leave", "step"]), st.integers(1, 9)), max_size=30),
)
def test_due_members_are_those_whose_pages_are_full(
    size: int, moves: list[tuple[str, int]]
) -> None:
    members = DecodeSet(size)
    alive: list[Sequence] = []
    for index, (move, number) in enumerate(moves):
        if move == "join":
            sequence = decoding(number, -(-number // size), index)
            alive.append(sequence)
            members.join(sequence)
        elif move == "leave" and alive:
            sequence = alive.pop(number % len(alive))
            members.leave(sequence)
        elif move == "step":
            full = [s for s in alive if s.num_computed_tokens == s.num_pages * size]
            assert members.num_due() == len(full)
            due = members.take_due()
            assert sorted(s.index for s in due) == [s.index for s in full]
            for sequence in due:
                sequence.num_pages += 1
            for sequence in alive:
                sequence.num_computed_tokens += 1
            members.advance(1)
        assert list(members.members) == alive
        assert members.context == sum(s.num_computed_tokens for s in alive)


def test_pages_due_ahead_are_those_of_stepping_there() -> None:
    ahead, stepping = DecodeSet(2), DecodeSet(2)
    for members in (ahead, stepping):
        for index, computed in enumerate((3, 4, 2, 7)):
            members.join(decoding(computed, -(-computed // 2), index))
    expected = []
    for _ in range(5):
        expected.append([s.index for s in stepping.take_due()])
        stepping.advance(1)
    found = [[s.index for s in ahead.take_due(offset)] for offset in range(5)]
    assert found == expected
    assert np.sum([len(due) for due in found]) == 10
