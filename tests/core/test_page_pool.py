"""Every page is handed out once; which one is a matter of rule, not of chance."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.core.page_pool import PagePool


def test_never_used_pages_go_in_order() -> None:
    pool = PagePool(5)
    assert pool.allocate(2).tolist() == [0, 1]
    assert pool.allocate(3).tolist() == [2, 3, 4]
    assert pool.num_free == 0


def test_freed_pages_go_first_and_newest_first() -> None:
    pool = PagePool(6)
    pages = pool.allocate(4)
    pool.free(pages[:1])
    pool.free(pages[2:4])
    assert pool.allocate(4).tolist() == [3, 2, 0, 4]


def test_taking_at_once_equals_taking_one_by_one() -> None:
    at_once, one_by_one = PagePool(9), PagePool(9)
    for pool in (at_once, one_by_one):
        pages = pool.allocate(5)
        pool.free(pages[1:4])
    assert at_once.allocate(6).tolist() == [one_by_one.allocate(1)[0] for _ in range(6)]


def test_nothing_is_taken_when_too_much_is_asked_for() -> None:
    pool = PagePool(3)
    pool.allocate(1)
    with pytest.raises(ValueError, match=r"allocate\(3\): only 2 pages are free"):
        pool.allocate(3)
    assert pool.num_free == 2
    assert pool.allocate(0).tolist() == []


@pytest.mark.parametrize("num_pages", [0, -1, 2**31])
def test_a_pool_needs_a_size(num_pages: int) -> None:
    with pytest.raises(ValueError, match=f"num_pages={num_pages}: a number from 1 to"):
        PagePool(num_pages)


def test_a_pool_larger_than_memory_costs_nothing() -> None:
    assert PagePool(2**31 - 1).allocate(2).tolist() == [0, 1]


def test_handed_out_pages_stay_as_they_are() -> None:
    pool = PagePool(4)
    first = pool.allocate(2)
    pool.free(first)
    again = pool.allocate(2)
    pool.free(again)
    pool.allocate(1)
    assert first.tolist() == [0, 1]
    assert again.tolist() == [1, 0]


@given(st.lists(st.integers(-4, 4), max_size=40), st.integers(1, 12))
def test_free_and_held_pages_are_all_pages(moves: list[int], num_pages: int) -> None:
    pool = PagePool(num_pages)
    held: list[int] = []
    for move in moves:
        if move >= 0:
            count = min(move, num_pages - len(held))
            held += pool.allocate(count).tolist()
        else:
            back, held = held[:-move], held[-move:]
            pool.free(np.array(back, dtype=np.int32))
        assert pool.num_free == num_pages - len(held)
        assert sorted(held + pool.free_pages().tolist()) == list(range(num_pages))


def test_more_pages_can_be_freed_than_the_pool_first_reserved_room_for() -> None:
    pool = PagePool(5000)
    pages = pool.allocate(5000)
    pool.free(pages[:3000])
    pool.free(pages[3000:])
    assert np.array_equal(pool.allocate(5000), pages[::-1])
