"""Which cached pages leave first; numbered rows are peers' test cases."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.core.eviction_index import EvictionIndex
from testbed.core.page_pool import EMPTY_PAGES
from testbed.core.policy import EvictionPolicy, PolicyError
from testbed.core.radix_tree import RadixTree
from testbed.core.views import CacheView, NodeView
from testbed.policies.eviction.frequency import Lfu
from testbed.policies.eviction.recency import Fifo, Lru
from tests.core.building import CacheDriver, Listener, Mru, radix_driver, tokens_of

A = [1, 2, 3, 4, 5, 6, 7, 8]
B = [20, 21, 22, 23, 24, 25, 26, 27]


def touch(driver: CacheDriver, prompt: list[int]) -> None:
    """Admit the prompt and abort at once: recency changes, content does not."""
    driver.tick()
    sequence = driver.wait(prompt)
    driver.admit(sequence)
    driver.abort(sequence)


def evicted_tokens(driver: CacheDriver, listener: Listener) -> list[int]:
    """The last token of each page that left, in order."""
    return [driver.written[page][1][-1] for page in listener.evicted]


def test_both_granularities_by_hand() -> None:  # row 54
    for granularity, left in (("node", [4, 5, 3, 2, 1]), ("page", [4, 5, 3])):
        listener = Listener()
        driver = radix_driver(granularity=granularity, listener=listener)  # type: ignore[arg-type]
        for prompt in ([1, 2, 3], [1, 2, 3, 4], [1, 2, 3, 5]):
            driver.serve(prompt)
        driver.evict(3)
        assert evicted_tokens(driver, listener) == left


@pytest.mark.parametrize("newcomer", [[1, 2, 3, 4, 99], [1, 2, 3, 4, 50, 51]])
@pytest.mark.parametrize("granularity", ["page", "node"])
def test_a_partial_hit_refreshes_only_what_it_hit(granularity: Any, newcomer: list[int]) -> None:
    listener = Listener()  # rows 55, 56
    driver = radix_driver(granularity=granularity, listener=listener)
    for prompt in (A, B, newcomer):
        driver.serve(prompt)
    driver.evict(4)
    assert evicted_tokens(driver, listener) == [8, 7, 6, 5]


@pytest.mark.parametrize("newcomer", [[1, 2, 3, 4, 99], [1, 2, 3, 4, 50, 51]])
@pytest.mark.parametrize(("granularity", "left"), [("page", 4), ("node", 8)])
def test_split_touch_sglang_refreshes_the_unmatched_half_too(
    granularity: Any, left: int, newcomer: list[int]
) -> None:
    listener = Listener()
    driver = radix_driver(granularity=granularity, split_touch="sglang", listener=listener)
    for prompt in (A, B, newcomer):
        driver.serve(prompt)
    driver.evict(4)
    assert evicted_tokens(driver, listener) == list(reversed(B))[:left]


def test_an_insertion_that_splits_refreshes_only_what_it_shares() -> None:  # row 56
    listener = Listener()
    driver = radix_driver(listener=listener)
    late = driver.wait([1, 2, 3, 4, 50, 51])
    driver.admit(late)
    driver.serve(A)
    driver.serve(B)
    driver.tick()
    driver.compute(late, 6)
    driver.finish(late)
    driver.evict(4)
    assert evicted_tokens(driver, listener) == [8, 7, 6, 5]


def test_a_partial_hit_of_a_cold_node_never_hurts_more_recent_ones() -> None:  # row 62
    listener = Listener()
    driver = radix_driver(listener=listener)
    for prompt in (A, B, [30, 31, 32]):
        driver.serve(prompt)
    touch(driver, [1, 2, 3, 4, 99])
    driver.evict(13)
    assert evicted_tokens(driver, listener) == [8, 7, 6, 5, *reversed(B), 32]


def test_fifo_keeps_the_stamp_of_both_halves() -> None:  # row 61
    listener = Listener()
    driver = radix_driver(eviction=Fifo(), granularity="node", listener=listener)
    driver.serve([1, 2, 3, 4])
    driver.serve([9, 8, 7])
    touch(driver, [1, 2, 5])
    driver.evict(7)
    assert evicted_tokens(driver, listener) == [4, 3, 2, 1, 7, 8, 9]


def test_fifo_ignores_use_and_lru_does_not() -> None:
    for eviction, left in ((Fifo(), [2, 1]), (Lru(), [4, 3])):
        listener = Listener()
        driver = radix_driver(eviction=eviction, listener=listener)
        driver.serve([1, 2])
        driver.serve([3, 4])
        touch(driver, [1, 2, 9])
        driver.evict(2)
        assert evicted_tokens(driver, listener) == left


def test_lfu_counts_requests_then_asks_for_the_older() -> None:
    listener = Listener()
    driver = radix_driver(eviction=Lfu(), listener=listener)
    for prompt in ([1, 2], [3, 4], [5, 6]):
        driver.serve(prompt)
    touch(driver, [1, 2, 9])
    touch(driver, [5, 6, 9])
    touch(driver, [5, 6, 9])
    driver.serve([3, 4, 9])
    # Uses: [1,2] 2, [3,4] 2 and newer, [9] below it 1, [5,6] 3.
    driver.evict(6)
    assert evicted_tokens(driver, listener) == [9, 2, 1, 4, 3, 6]


def test_a_request_counts_once_whatever_the_number_of_its_chunks() -> None:  # row 86
    driver = radix_driver(page_size=2)
    sequence = driver.wait(range(16), output=5)
    driver.admit(sequence)
    for end in range(2, 17, 2):
        driver.tick()
        driver.compute(sequence, end)
    for _ in range(5):
        driver.decode(sequence)
    driver.finish(sequence)
    assert all_hits(driver) == [1] * 9
    driver.serve(range(16))
    assert all_hits(driver) == [2] * 8 + [1]


def all_hits(driver: CacheDriver) -> list[int]:
    """Hits of every node, parents first."""
    stack, hits = [*driver.cache.roots()], []
    while stack:
        node = stack.pop(0)
        hits += [] if node.parent is None else [node.hits]
        stack += node.children()
    return hits


def test_a_sequence_that_adopts_counts_as_a_use() -> None:
    driver = radix_driver()
    first, second = driver.wait([1, 2, 3]), driver.wait([1, 2, 3])
    for sequence in (first, second):
        driver.admit(sequence)
    for sequence in (first, second):
        driver.compute(sequence, 3)
    assert all_hits(driver) == [2]


def test_equal_priorities_leave_in_insertion_order() -> None:
    listener = Listener()
    driver = radix_driver(listener=listener)
    sequences = [driver.wait([10 * n, 10 * n + 1]) for n in (3, 1, 2)]
    for sequence in sequences:
        driver.admit(sequence)
    for sequence in sequences:
        driver.compute(sequence, 2)
    for sequence in reversed(sequences):
        driver.finish(sequence)
    driver.evict(6)
    assert evicted_tokens(driver, listener) == [31, 30, 11, 10, 21, 20]


def test_mru_keys_grow_more_urgent_after_they_were_entered() -> None:
    listener = Listener()
    driver = radix_driver(eviction=Mru(), listener=listener)
    for prompt in ([1, 2], [3, 4], [5, 6]):
        driver.serve(prompt)
    driver.evict(1)
    touch(driver, [1, 2, 9])
    driver.evict(3)
    assert evicted_tokens(driver, listener) == [6, 2, 1, 5]


class Smallest(EvictionPolicy):
    """Shortest edge first: a split makes the lower half more urgent."""

    def priority(self, node: NodeView, now: int) -> int:
        return node.num_tokens


def test_a_split_ranks_the_lower_half_anew() -> None:
    listener = Listener()
    driver = radix_driver(eviction=Smallest(), granularity="node", listener=listener)
    driver.serve(A)
    driver.serve(B[:5])
    running = driver.wait([*A[:4], 99])
    driver.admit(running)
    driver.evict(1)
    assert evicted_tokens(driver, listener) == [8, 7, 6, 5]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(-5, 5)), max_size=40))
def test_the_index_is_a_minimum_over_newest_keys(entries: list[tuple[int, int]]) -> None:
    tree, index = RadixTree(1), EvictionIndex()
    leaves = [tree.add_leaf(tree.root(""), tokens_of([n]), EMPTY_PAGES) for n in range(6)]
    newest: dict[int, int] = {}
    for number, priority in entries:
        index.enter(leaves[number], priority)
        newest[number] = priority
        index.compact(0)
        best = min(newest, key=lambda n: (newest[n], n))
        assert index.first() is leaves[best]
    for number in sorted(newest, key=lambda n: (newest[n], n)):
        assert index.first() is leaves[number]
        tree.lock(leaves[number])
    assert index.first() is None


def test_the_index_stays_small_however_often_a_leaf_is_entered() -> None:
    tree, index = RadixTree(1), EvictionIndex()
    leaf = tree.add_leaf(tree.root(""), tokens_of([1]), EMPTY_PAGES)
    for priority in range(10_000):
        index.enter(leaf, -priority)
        index.compact(tree.num_nodes)
    assert len(index._heap) <= 64 + 2 * tree.num_nodes
    assert index.first() is leaf


class LongestLeaf(EvictionPolicy):
    """Names the victims itself, whatever their recency."""

    def priority(self, node: NodeView, now: int) -> int:
        return node.last_access

    def victims(self, view: CacheView, need: int) -> Iterator[NodeView]:
        while leaves := list(view.evictable_leaves()):
            yield max(leaves, key=lambda leaf: leaf.num_tokens)


@pytest.mark.parametrize(("granularity", "left"), [("page", [6, 5, 4]), ("node", [6, 5, 4, 3])])
def test_a_policy_may_name_the_victims(granularity: Any, left: list[int]) -> None:
    listener = Listener()
    driver = radix_driver(eviction=LongestLeaf(), granularity=granularity, listener=listener)
    for prompt in ([1, 2], [3, 4, 5, 6], [7, 8, 9]):
        driver.serve(prompt)
    driver.evict(3)
    assert evicted_tokens(driver, listener) == left


class Wrong(LongestLeaf):
    def __init__(self, named: list[Any]) -> None:
        self.named = named

    def victims(self, view: CacheView, need: int) -> Iterator[NodeView]:
        yield from self.named or [node for root in view.roots() for node in root.children()]


@pytest.mark.parametrize(
    ("named", "message"),
    [
        (["x"], "Wrong.victims: 'x' is no evictable leaf"),
        ([], r"Wrong.victims: NodeView\(tokens 0..2, locks 0, hits 2\) is no evictable leaf"),
    ],
)
def test_a_victim_must_be_an_evictable_leaf(named: list[Any], message: str) -> None:
    driver = radix_driver(eviction=Wrong(named))
    driver.serve([1, 2])
    driver.serve([1, 2, 3])
    with pytest.raises(PolicyError, match=message):
        driver.evict(1)


def test_victims_must_suffice() -> None:
    driver = radix_driver(eviction=Wrong([]))
    driver.serve([1, 2])
    with pytest.raises(PolicyError, match=r"Wrong.victims: it ended while 1 pages are short"):
        driver.cache.take(driver.cache.num_free_pages + 3)
