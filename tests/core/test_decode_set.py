"""Who needs a page and who finishes at which decode step, against looking at every member."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.core.decode_set import DecodeSet
from testbed.core.request import Sequence
from tests.core.building import make_request


def member(computed: int, output: int = 100, index: int = 0, page_size: int = 4) -> Sequence:
    """A sequence whose prefill of `computed` tokens is complete and whose first token is made."""
    sequence = Sequence(make_request(index, range(computed), output), index)
    sequence.num_joined_computed = computed
    sequence.num_joined_generated = 1
    sequence.num_pages = -(-computed // page_size)
    sequence.pages = np.arange(sequence.num_pages, dtype=np.int32) + 100 * index
    return sequence


def test_progress_is_the_clock_s_while_decoding_and_stays_afterwards() -> None:
    decoding = DecodeSet(page_size=4, num_pages=1000)
    early, late = member(8, index=0), member(6, index=1)
    decoding.join(early)
    decoding.advance(2)
    decoding.join(late)
    decoding.advance(3)
    assert (early.num_computed_tokens, early.num_generated_tokens) == (13, 6)
    assert (late.num_computed_tokens, late.num_generated_tokens) == (9, 4)
    assert (decoding.context, len(decoding)) == (22, 2)
    decoding.leave(early)
    decoding.advance(1)
    assert (early.num_computed_tokens, early.num_generated_tokens) == (13, 6)
    assert (decoding.context, list(decoding.members)) == (10, [late])


def test_pages_that_several_read_count_as_shared_but_once() -> None:
    decoding = DecodeSet(page_size=4, num_pages=1000)
    first, second, third = members = [member(10, index=index) for index in range(3)]
    # Two whole pages and half of a third; the first page is everybody's, the next one two members'.
    for sequence, pages in zip(members, ([7, 8, 9], [7, 8, 10], [7, 11, 12]), strict=True):
        sequence.pages = np.array(pages, dtype=np.int32)
    found = []
    for sequence in members:
        decoding.join(sequence)
        found.append(decoding.shared)
    decoding.advance(2)
    for sequence in (first, third, second):
        decoding.leave(sequence)
        found.append(decoding.shared)
    assert found == [0, 8, 12, 4, 0, 0]


def test_a_page_is_due_when_the_last_one_is_full() -> None:
    decoding = DecodeSet(page_size=4, num_pages=1000)
    full, two_left = member(8, index=0), member(6, index=1)
    decoding.join(full)
    decoding.join(two_left)
    assert decoding.num_due() == 1
    assert decoding.take_due() == [full]
    decoding.advance(1)
    assert (decoding.num_due(), decoding.take_due()) == (0, [])
    decoding.advance(1)
    assert decoding.take_due() == [two_left]


def test_those_who_finish_together_leave_in_the_order_of_joining() -> None:
    decoding = DecodeSet(page_size=4, num_pages=1000)
    members = [member(5, output, index) for index, output in enumerate((4, 3, 4))]
    for sequence in members:
        decoding.join(sequence)
    assert decoding.steps_to_finish() == 2
    decoding.advance(2)
    assert decoding.take_finished() == [members[1]]
    decoding.leave(members[1])
    assert decoding.steps_to_finish() == 1
    decoding.advance(1)
    assert decoding.take_finished() == [members[0], members[2]]


@dataclass
class Naive:
    """One member, counted step by step."""

    sequence: Sequence
    computed: int
    generated: int
    pages: int


moves = st.lists(
    st.tuples(st.sampled_from(["join", "leave", "step", "step", "run"]), st.integers(1, 9)),
    max_size=40,
)


@given(st.sampled_from([1, 2, 4]), moves)
def test_every_step_is_what_counting_finds(size: int, moves: list[tuple[str, int]]) -> None:
    decoding = DecodeSet(size, num_pages=10_000)
    alive: list[Naive] = []
    for index, (move, number) in enumerate(moves):
        if move == "join":
            sequence = member(number, 2 + number % 5, index, size)
            alive.append(Naive(sequence, number, 1, sequence.num_pages))
            decoding.join(sequence)
        elif move == "leave" and alive:
            decoding.leave(alive.pop(number % len(alive)).sequence)
        elif move in ("step", "run") and alive:
            step(decoding, alive, size)
            if move == "run" and alive:
                run(decoding, alive, size, number)
        assert list(decoding.members) == [one.sequence for one in alive]
        assert decoding.context == sum(one.computed for one in alive)
        for one in alive:
            assert one.sequence.num_computed_tokens == one.computed
            assert one.sequence.num_generated_tokens == one.generated


def due(alive: list[Naive], size: int) -> list[Naive]:
    return [one for one in alive if one.computed == one.pages * size]


def step(decoding: DecodeSet, alive: list[Naive], size: int) -> None:
    """One decode step from its pages to those who finish."""
    needy = due(alive, size)
    assert decoding.num_due() == len(needy)
    assert set(decoding.take_due()) == {one.sequence for one in needy}
    for one in needy:
        one.pages += 1
    advance(decoding, alive, 1)


def advance(decoding: DecodeSet, alive: list[Naive], steps: int) -> None:
    for one in alive:
        one.computed += steps
        one.generated += steps
    decoding.advance(steps)
    finished = [one for one in alive if one.generated == one.sequence.num_output_tokens]
    assert decoding.take_finished() == [one.sequence for one in finished]
    for one in finished:
        decoding.leave(one.sequence)
        alive.remove(one)


def run(decoding: DecodeSet, alive: list[Naive], size: int, limit: int) -> None:
    """A step in flight, and the pages of the steps after it taken at once."""
    for one in due(alive, size):
        one.pages += 1
    decoding.take_due()
    left = [one.sequence.num_output_tokens - one.generated for one in alive]
    assert decoding.steps_to_finish() == min(left)
    steps = min(limit, *left) if left else limit
    expected: list[tuple[int, set[Sequence]]] = []
    for ahead in range(1, steps):
        needy = [one for one in alive if one.computed + ahead == one.pages * size]
        if needy:
            expected.append((ahead, {one.sequence for one in needy}))
        for one in needy:
            one.pages += 1
    total = sum(len(needy) for _, needy in expected)
    assert decoding.fits_ahead(steps, total)
    assert total == 0 or not decoding.fits_ahead(steps, total - 1)
    found = [(ahead, set(sequences)) for ahead, sequences in decoding.take_due_ahead(steps)]
    assert found == expected
    advance(decoding, alive, steps)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_pages_are_due_in_the_same_order_at_once_and_one_by_one(size: int) -> None:
    ahead, stepping = DecodeSet(size, num_pages=10_000), DecodeSet(size, num_pages=10_000)
    for decoding in (ahead, stepping):
        for index, computed in enumerate((3, 4, 2, 7, 8)):
            decoding.join(member(computed, index=index, page_size=size))
    expected = []
    for number in range(9):
        expected += [(number, s.index) for s in stepping.take_due()]
        stepping.advance(1)
    found = [(0, s.index) for s in ahead.take_due()]
    found += [(step, s.index) for step, due in ahead.take_due_ahead(9) for s in due]
    assert found == expected
