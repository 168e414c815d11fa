"""NoCache, and the check that every page is in one place."""

from __future__ import annotations

import numpy as np
import pytest

from testbed.core.page_pool import PagePool
from testbed.core.prefix_cache import InvariantError, NoCache, check_pages, new_page_table
from testbed.core.request import Sequence
from tests.core.building import CacheDriver, make_request


def test_nothing_is_ever_shared() -> None:  # row 9
    driver = CacheDriver(NoCache(PagePool(10), 2))
    first, second = driver.wait([1, 2, 3]), driver.wait([1, 2, 3])
    for sequence in (first, second):
        assert driver.admit(sequence) == 0
        driver.compute(sequence, 3)
    assert driver.peek(1, 2, 3) == second.num_matched_tokens == 0
    cache = driver.cache
    driver.check()
    assert (cache.num_free_pages, cache.num_evictable_pages, cache.num_locked_pages) == (6, 0, 0)
    assert list(cache.roots()) == list(cache.evictable_leaves()) == []
    for sequence in (first, second):
        driver.finish(sequence)
    driver.check()
    assert cache.num_free_pages == 10


def test_check_names_pages_that_are_lost_or_held_twice() -> None:
    def pages(*ids: int) -> np.ndarray:
        return np.array(ids, dtype=np.int32)

    check_pages(4, [pages(0, 2), pages(), pages(3, 1)])
    with pytest.raises(InvariantError, match=r"pages \[1\] are in \[0\] places"):
        check_pages(3, [pages(0), pages(2)])
    with pytest.raises(InvariantError, match=r"pages \[0, 1\] are in \[2, 0\] places"):
        check_pages(2, [pages(0), pages(0)])
    with pytest.raises(InvariantError, match=r"\b2\b"):
        check_pages(2, [pages(0, 1), pages(2)])


@pytest.mark.parametrize(
    ("prompt", "max_new", "page", "room"), [(4, 4, 4, 2), (5, 4, 4, 3), (1, 1, 16, 1)]
)
def test_a_page_table_has_room_for_prompt_and_output(
    prompt: int, max_new: int, page: int, room: int
) -> None:
    sequence = Sequence(make_request(0, range(prompt), max_new), 0)
    assert len(new_page_table(sequence, page)) == room
