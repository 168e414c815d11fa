"""Locks, ownership and adoption; numbered rows are peers' test cases, issues are SGLang's."""

from __future__ import annotations

import numpy as np
import pytest

from testbed.core.page_pool import PagePool
from testbed.core.prefix_cache import InvariantError
from testbed.core.radix_cache import RadixCache
from testbed.policies.eviction.recency import Lru
from tests.core.building import CacheDriver, Listener, radix_driver, tokens_of


def books(driver: CacheDriver) -> tuple[int, int, int]:
    """(free, evictable, locked) pages, after the cache's own check."""
    driver.check()
    cache = driver.cache
    return cache.num_free_pages, cache.num_evictable_pages, cache.num_locked_pages


def edges(driver: CacheDriver) -> list[list[int]]:
    cache = driver.cache
    assert isinstance(cache, RadixCache)
    return [node.tokens.tolist() for node in cache.tree.nodes()]


def test_a_running_sequence_locks_what_it_published() -> None:  # row 32
    driver = radix_driver(num_pages=10)
    sequence = driver.wait([1, 2, 3])
    driver.admit(sequence)
    assert books(driver) == (7, 0, 0)
    driver.compute(sequence, 3)
    assert books(driver) == (7, 0, 3)
    driver.finish(sequence)
    assert books(driver) == (7, 3, 0)


def test_what_is_locked_survives_the_eviction_of_all_else() -> None:  # row 33
    driver = radix_driver(num_pages=10)
    sequence = driver.wait([1, 2, 3])
    driver.admit(sequence)
    driver.compute(sequence, 3)
    driver.serve([4, 5, 6])
    driver.evict(3)
    assert (driver.peek(1, 2, 3), driver.peek(4, 5, 6)) == (3, 0)
    with pytest.raises(InvariantError, match="1 pages are short and nothing is evictable"):
        driver.cache.take(8)
    driver.finish(sequence)
    driver.evict(3)
    assert books(driver) == (10, 0, 0)


def test_evicting_from_an_empty_tree_is_an_error() -> None:  # row 34
    with pytest.raises(InvariantError, match="nothing is evictable"):
        radix_driver(num_pages=4).cache.take(5)


def test_splitting_a_locked_node_locks_both_halves() -> None:  # row 35
    driver = radix_driver(num_pages=10)
    long = driver.wait([1, 2, 3, 4])
    driver.admit(long)
    driver.compute(long, 4)
    short = driver.wait([1, 2, 9])
    assert driver.admit(short) == 2
    assert edges(driver) == [[1, 2], [3, 4]]
    assert books(driver) == (5, 0, 4)
    driver.abort(long)
    assert books(driver) == (5, 2, 2)
    driver.abort(short)
    assert books(driver) == (6, 4, 0)


def test_a_lock_on_an_inner_node_protects_only_the_path_to_it() -> None:  # row 36
    driver = radix_driver(num_pages=10)
    driver.serve([1, 2, 3])
    driver.serve([1, 2, 3, 4])
    sequence = driver.wait([1, 2, 3, 9])
    driver.admit(sequence)
    assert books(driver) == (5, 1, 3)
    driver.evict(1)
    assert (driver.peek(1, 2, 3, 4), books(driver)) == (3, (6, 0, 3))


def test_at_least_one_token_is_computed() -> None:  # rows 22, 29
    driver = radix_driver()
    driver.serve(range(40))
    assert driver.peek(*range(40)) == 40
    assert driver.serve(range(40)) == 39
    paged = radix_driver(page_size=4)
    paged.serve(range(8))
    assert paged.serve(range(8)) == 4


def test_publishing_twice_changes_nothing() -> None:  # issue 21, row 19
    driver = radix_driver(num_pages=20, page_size=4)
    sequence = driver.wait(range(10))
    driver.admit(sequence)
    driver.compute(sequence, 10)
    before = (books(driver), edges(driver), sequence.pages[: sequence.num_pages].tolist())
    driver.cache.publish(sequence, sequence.tokens)
    assert (books(driver), edges(driver), sequence.pages[: sequence.num_pages].tolist()) == before
    assert sequence.num_tree_pages == 2


def test_adoption_takes_the_tree_s_pages_and_frees_the_duplicates() -> None:
    driver = radix_driver(num_pages=20)
    first, second = driver.wait([1, 2, 3, 4]), driver.wait([1, 2, 3, 9])
    driver.admit(first)
    driver.admit(second)
    assert first.pages[:4].tolist() == [0, 1, 2, 3]
    assert second.pages[:4].tolist() == [4, 5, 6, 7]
    driver.compute(first, 4)
    driver.compute(second, 4)
    assert second.pages[:4].tolist() == [0, 1, 2, 7]
    assert second.num_tree_pages == 4
    assert books(driver) == (15, 0, 5)
    assert driver.cache.take(3).tolist() == [6, 5, 4]


def test_adoption_chunk_by_chunk_while_the_other_is_ahead() -> None:
    driver = radix_driver(num_pages=30, page_size=2)
    ahead, behind = driver.wait(range(12)), driver.wait(range(12))
    driver.admit(ahead)
    driver.admit(behind)
    driver.compute(ahead, 8)
    driver.compute(behind, 4)
    driver.compute(behind, 12)
    driver.compute(ahead, 12)
    assert ahead.pages[:6].tolist() == behind.pages[:6].tolist()
    assert books(driver) == (24, 0, 6)


def test_adopted_pages_stay_when_their_writer_leaves() -> None:
    driver = radix_driver(num_pages=10)
    first, second = driver.wait([1, 2, 3]), driver.wait([1, 2, 3])
    driver.admit(first)
    driver.admit(second)
    driver.compute(first, 3)
    driver.compute(second, 3)
    driver.finish(first)
    assert books(driver) == (7, 0, 3)
    driver.finish(second)
    assert books(driver) == (7, 3, 0)


def test_an_aborted_sequence_leaves_its_published_chunks_and_frees_the_rest() -> None:  # issue 20
    driver = radix_driver(num_pages=20, page_size=2)
    sequence = driver.wait(range(10))
    driver.admit(sequence)
    driver.compute(sequence, 4)
    driver.abort(sequence)
    assert books(driver) == (18, 2, 0)
    assert driver.serve(range(10)) == 4
    driver.check()


def test_an_abort_before_anything_was_computed_gives_all_back() -> None:  # row 80
    driver = radix_driver(num_pages=20)
    sequence = driver.wait([1, 2, 3])
    driver.admit(sequence)
    driver.abort(sequence)
    assert (books(driver), driver.peek(1, 2, 3)) == ((20, 0, 0), 0)


def test_a_half_computed_prompt_can_be_hit() -> None:  # row 82
    driver = radix_driver(num_pages=20, page_size=2)
    sequence = driver.wait(range(12))
    driver.admit(sequence)
    driver.compute(sequence, 6)
    assert driver.peek(*range(12)) == 6
    assert books(driver) == (14, 0, 3)
    driver.compute(sequence, 12)
    assert (driver.peek(*range(12)), books(driver)) == (12, (14, 0, 6))


def test_prompt_and_output_stay_as_nodes_of_their_own() -> None:  # row 79
    driver = radix_driver(num_pages=20, page_size=2)
    prompt, output = [1, 2, 3, 4, 5, 6], [7, 8, 9]
    driver.serve(prompt, output)
    assert edges(driver) == [prompt, [7, 8]]
    assert driver.peek(*prompt, *output) == 8
    driver.evict(1)
    assert driver.peek(*prompt, *output) == 6


def test_the_last_output_token_is_not_cached() -> None:
    driver = radix_driver()
    driver.serve([1, 2], [3, 4, 5])
    assert driver.peek(1, 2, 3, 4, 5) == 4
    driver.serve([9, 8], [7])
    assert driver.peek(9, 8, 7) == 2


def test_evicting_takes_only_what_is_short() -> None:  # issue 13
    listener = Listener()
    driver = radix_driver(num_pages=10, listener=listener)
    driver.serve(range(6))
    assert books(driver) == (4, 6, 0)
    pages = driver.cache.take(5)
    assert listener.evicted == [5]
    assert pages.tolist() == [6, 7, 8, 9, 5]


def test_evicted_pages_go_to_the_taker_in_the_order_in_which_they_left() -> None:
    at_once, one_by_one = radix_driver(num_pages=6), radix_driver(num_pages=6)
    for driver in (at_once, one_by_one):
        driver.serve([1, 2, 3])
        driver.serve([1, 2, 8, 9])
    taken = [int(one_by_one.cache.take(1)[0]) for _ in range(5)]
    assert at_once.cache.take(5).tolist() == taken == [5, 2, 4, 3, 1]


def test_whole_nodes_overshoot_and_the_rest_is_free() -> None:  # row 53
    listener = Listener()
    driver = radix_driver(num_pages=12, granularity="node", listener=listener)
    driver.serve(range(10))
    assert len(driver.cache.take(3)) == 3
    assert listener.evicted == list(reversed(range(10)))
    assert (driver.cache.num_free_pages, driver.cache.num_evictable_pages) == (9, 0)


def test_a_namespace_is_a_cache_of_its_own_over_one_pool() -> None:
    driver = radix_driver(num_pages=10)
    for namespace in ("", "a", "b"):
        assert driver.serve([1, 2, 3], namespace=namespace) == 0
    assert driver.serve([1, 2, 3], namespace="a") == 2
    driver.evict(3)
    assert [driver.peek(1, 2, 3, namespace=n) for n in ("", "a", "b")] == [0, 3, 3]


def test_a_peek_changes_nothing() -> None:
    driver = radix_driver(num_pages=8)
    driver.serve([1, 2, 3, 4])
    driver.serve([5, 6, 7, 8])
    driver.tick()
    assert driver.peek(1, 2, 9) == 2
    assert driver.peek(1, 2, namespace="unheard of") == 0
    assert edges(driver) == [[1, 2, 3, 4], [5, 6, 7, 8]]
    assert len(list(driver.cache.roots())) == 1
    driver.evict(4)
    assert (driver.peek(1, 2, 3, 4), driver.peek(5, 6, 7, 8)) == (0, 4)


def test_the_pages_that_acquiring_would_lock_are_those_not_locked_yet() -> None:
    driver = radix_driver(num_pages=30, page_size=2)
    driver.serve(range(8))
    driver.serve([0, 1, 2, 3, 9, 9, 8, 8])
    waiting = driver.wait([*range(8), 7])
    assert driver.cache.evictable_match_pages(waiting, 8) == 4
    assert driver.cache.evictable_match_pages(waiting, 2) == 1
    other = driver.wait([0, 1, 2, 3, 5])
    driver.admit(other)
    assert driver.cache.evictable_match_pages(waiting, 8) == 2
    before = driver.cache.num_evictable_pages
    driver.admit(waiting)
    assert before - driver.cache.num_evictable_pages == 2


def test_evictable_leaves_come_in_insertion_order() -> None:
    driver = radix_driver(num_pages=30)
    for prompt in ([5, 1], [3], [5, 2], [4]):
        driver.serve(prompt)
    running = driver.wait([3, 9])
    driver.admit(running)
    ends = [(leaf.num_tokens, leaf.end) for leaf in driver.cache.evictable_leaves()]
    assert ends == [(1, 2), (1, 2), (1, 1)]
    assert [leaf.serial for leaf in driver.cache.evictable_leaves()] == [1, 3, 4]


def test_check_finds_lost_and_doubled_pages_and_wrong_locks() -> None:
    cache = RadixCache(PagePool(4), 1, Lru(), Listener())
    driver = CacheDriver(cache)
    driver.serve([1, 2])
    cache.pool.free(np.array([0], dtype=np.int32))
    with pytest.raises(InvariantError, match=r"pages \[0\] are in \[2\] places, not in one"):
        driver.check()
    cache.pool.allocate(2)
    with pytest.raises(InvariantError, match=r"pages \[2\] are in \[0\] places, not in one"):
        driver.check()
    driver = radix_driver(num_pages=4)
    driver.serve([1, 2])
    assert isinstance(driver.cache, RadixCache)
    node, _ = driver.cache.tree.match(tokens_of([1, 2]))
    driver.cache.tree.lock(node)
    with pytest.raises(InvariantError, match="0 running sequences pass"):
        driver.check()
