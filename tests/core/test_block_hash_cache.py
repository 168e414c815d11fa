"""Hashed blocks and one free queue, as vLLM's block pool keeps them."""

from __future__ import annotations

import pytest

from testbed.core.block_hash_cache import BlockHashCache
from testbed.core.prefix_cache import InvariantError
from tests.core.building import CacheDriver, Listener


def block_driver(
    num_pages: int = 20, page_size: int = 2, listener: Listener | None = None
) -> CacheDriver:
    return CacheDriver(BlockHashCache(num_pages, page_size, listener or Listener()))


def books(driver: CacheDriver) -> tuple[int, int, int]:
    """(free, evictable, locked) pages, after the cache's own check."""
    driver.check()
    cache = driver.cache
    return cache.num_free_pages, cache.num_evictable_pages, cache.num_locked_pages


def test_a_finished_prompt_is_hit_in_whole_blocks() -> None:
    driver = block_driver()
    assert driver.serve([1, 2, 3, 4, 5]) == 0
    assert books(driver) == (18, 2, 0)
    assert driver.peek(1, 2, 3, 4, 5) == 4
    assert driver.peek(1, 2, 3) == 2
    assert driver.peek(2, 3, 4, 5) == 0
    assert driver.serve([1, 2, 3, 4, 5]) == 4
    assert driver.serve([1, 2, 3, 4]) == 2


def test_equal_blocks_after_different_prefixes_are_different() -> None:
    driver = block_driver()
    driver.serve([1, 2, 3, 4, 1, 2, 3, 4])
    assert driver.peek(3, 4) == 0
    assert driver.peek(1, 2, 3, 4, 3, 4) == 4
    assert driver.peek(1, 2, 3, 4, 1, 2) == 6


def test_namespaces_never_share() -> None:
    driver = block_driver()
    driver.serve([1, 2, 3], namespace="a")
    assert [driver.peek(1, 2, namespace=name) for name in ("a", "", "b")] == [2, 0, 0]


def test_the_head_of_the_queue_leaves_first_and_tails_are_queued_before_heads() -> None:
    listener = Listener()
    driver = block_driver(num_pages=4, listener=listener)
    driver.serve([1, 2, 3, 4, 5, 6])
    assert books(driver) == (1, 3, 0)
    driver.cache.take(1)
    assert listener.evicted == []
    driver.cache.take(2)
    assert listener.evicted == [2, 1]
    assert driver.peek(1, 2, 3, 4, 5, 6) == 2


def test_a_hit_takes_blocks_out_of_the_queue_and_they_return_to_its_end() -> None:
    listener = Listener()
    driver = block_driver(num_pages=4, listener=listener)
    driver.serve([1, 2])
    driver.serve([3, 4])
    sequence = driver.wait([1, 2, 9])
    assert driver.admit(sequence) == 2
    assert books(driver) == (1, 1, 1)
    driver.abort(sequence)
    driver.cache.take(3)
    assert listener.evicted == [1]
    driver.cache.take(1)
    assert listener.evicted == [1, 0]


def test_partial_blocks_wait_in_the_queue_like_all_others() -> None:
    listener = Listener()
    driver = block_driver(num_pages=3, listener=listener)
    driver.serve([1, 2, 3])
    # Taken in order: the block never used, the partial one, which was queued first, then [1, 2].
    assert driver.cache.take(3).tolist() == [2, 1, 0]
    assert listener.evicted == [0]


def test_a_block_computed_twice_is_kept_twice() -> None:
    listener = Listener()
    driver = block_driver(num_pages=6, listener=listener)
    first, second = driver.wait([1, 2, 3, 4]), driver.wait([1, 2, 3, 5])
    for sequence in (first, second):
        driver.admit(sequence)
    for sequence in (first, second):
        driver.compute(sequence, 4)
    assert second.pages[:2].tolist() == [2, 3]
    assert books(driver) == (2, 0, 4)
    driver.finish(first)
    driver.finish(second)
    driver.cache.take(4)
    assert (listener.evicted, driver.peek(1, 2)) == ([1, 0], 2)
    driver.cache.take(2)
    assert (listener.evicted, driver.peek(1, 2)) == ([1, 0, 3, 2], 0)


def test_an_aborted_sequence_leaves_what_it_published() -> None:
    driver = block_driver()
    sequence = driver.wait([1, 2, 3, 4, 5, 6])
    driver.admit(sequence)
    driver.compute(sequence, 4)
    driver.abort(sequence)
    assert books(driver) == (18, 2, 0)
    assert driver.peek(1, 2, 3, 4, 5, 6) == 4


def test_outputs_are_cached_but_for_the_last_token() -> None:
    driver = block_driver()
    driver.serve([1, 2, 3], [4, 5, 6])
    assert driver.peek(1, 2, 3, 4, 5, 6) == 4


def test_a_waiting_match_grows_and_shrinks_with_the_blocks() -> None:
    listener = Listener()
    driver = block_driver(num_pages=5, listener=listener)
    waiting = driver.wait([1, 2, 3, 4, 5, 6, 9])
    first = driver.wait([1, 2, 3, 4, 7, 7])
    driver.admit(first)
    driver.compute(first, 2)
    driver.compute(first, 6)
    driver.finish(first)
    assert listener.matches == [(waiting.request.id, 2), (waiting.request.id, 4)]
    driver.cache.take(4)
    assert listener.matches[2:] == [(waiting.request.id, 2)]
    assert waiting.num_matched_tokens == 2


def test_the_blocks_that_acquiring_would_refer_to_are_the_idle_ones() -> None:
    driver = block_driver()
    driver.serve([1, 2, 3, 4, 5, 6])
    running = driver.wait([1, 2, 9])
    driver.admit(running)
    waiting = driver.wait([1, 2, 3, 4, 5, 6, 9])
    assert driver.cache.evictable_match_pages(waiting, 6) == 2
    assert driver.cache.evictable_match_pages(waiting, 2) == 0


def test_touching_a_match_moves_it_to_the_end_of_the_queue() -> None:
    listener = Listener()
    driver = block_driver(num_pages=4, listener=listener)
    driver.serve([1, 2, 3, 4])
    driver.serve([5, 6, 7, 8])
    waiting = driver.wait([1, 2, 3, 4, 9])
    driver.cache.touch_match(waiting)
    driver.cache.take(4)
    assert listener.evicted == [3, 2, 1, 0]


def test_there_is_no_tree_to_look_at() -> None:
    driver = block_driver()
    driver.serve([1, 2, 3])
    assert list(driver.cache.roots()) == list(driver.cache.evictable_leaves()) == []


def test_check_finds_wrong_references() -> None:
    driver = block_driver()
    sequence = driver.wait([1, 2, 3, 4])
    driver.admit(sequence)
    driver.compute(sequence, 4)
    sequence.num_tree_pages = 1
    with pytest.raises(InvariantError):
        driver.check()
