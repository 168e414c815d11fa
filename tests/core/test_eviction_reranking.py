"""Priorities that change without a hook, or inside a leaf."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from testbed.core.policy import EvictionPolicy, PolicyError
from testbed.core.views import NodeView, SequenceView
from tests.core.building import CacheDriver, Listener, radix_driver

A, B = [1, 2, 3, 4, 5, 6], [21, 22, 23, 24]


def evicted_tokens(driver: CacheDriver, listener: Listener) -> list[int]:
    """The last token of each page that left, in order."""
    return [driver.written[page][1][-1] for page in listener.evicted]


class Deepest(EvictionPolicy):
    """The deepest page first, wherever it is."""

    def priority(self, node: NodeView, now: int) -> int:
        return -node.end

    def tail_pages(self, node: NodeView) -> int | None:
        return 1


@pytest.mark.parametrize("calls", [[5], [1] * 5, [2, 3]])
def test_a_leaf_is_ranked_anew_when_its_tail_has_left(calls: list[int]) -> None:
    listener = Listener()
    driver = radix_driver(eviction=Deepest(), listener=listener)
    driver.serve(B)
    driver.serve(A)
    for pages in calls:
        driver.evict(pages)
    # 24 and 4 are equally deep, and B came first.
    assert evicted_tokens(driver, listener) == [6, 5, 24, 4, 23]


def test_by_node_a_leaf_leaves_whole() -> None:
    listener = Listener()
    driver = radix_driver(eviction=Deepest(), granularity="node", listener=listener)
    driver.serve(B)
    driver.serve(A)
    driver.evict(1)
    assert evicted_tokens(driver, listener) == A[::-1]


def test_pages_ahead_stop_where_the_rank_changes() -> None:
    driver = radix_driver(num_pages=10, eviction=Deepest())
    driver.serve(B)
    driver.serve(A)
    assert driver.cache.pages_ahead(unnoticed=False) == 10
    assert driver.cache.pages_ahead(unnoticed=True) == 1


@pytest.mark.parametrize("count", [0, 5])
def test_a_tail_is_one_to_all_pages(count: int) -> None:
    class Wrong(Deepest):
        def tail_pages(self, node: NodeView) -> int | None:
            return count

    driver = radix_driver(eviction=Wrong())
    driver.serve(B)
    with pytest.raises(PolicyError, match=rf"Wrong.tail_pages: {count}; 1 to 4 pages of NodeView"):
        driver.evict(1)


class Disliked(EvictionPolicy):
    """Insertion order, but what is disliked goes first; nobody tells the cache when that changes
    other than through `reranked`."""

    def __init__(self) -> None:
        self.nodes: list[NodeView] = []
        self.disliked: set[NodeView] = set()

    def priority(self, node: NodeView, now: int) -> Any:
        return node not in self.disliked, node.serial

    def reranked(self) -> Iterable[NodeView]:
        return self.nodes

    def on_insert(self, node: NodeView, sequence: SequenceView) -> None:
        self.nodes.append(node)


def test_nodes_are_ranked_anew_before_an_eviction() -> None:
    listener = Listener()
    eviction = Disliked()
    driver = radix_driver(eviction=eviction, listener=listener)
    for prompt in ([1, 2], [3, 4], [5, 6]):
        driver.serve(prompt)
    eviction.disliked = {eviction.nodes[2]}
    driver.evict(1)
    eviction.disliked = {eviction.nodes[1]}
    # Nodes that have left, or are locked, are named in vain.
    running = driver.wait([1, 2, 7])
    driver.admit(running)
    driver.evict(3)
    driver.abort(running)
    driver.evict(1)
    assert evicted_tokens(driver, listener) == [6, 4, 3, 5, 2]
    assert driver.cache.pages_ahead(unnoticed=False) == driver.cache.num_free_pages


def test_a_node_shows_its_tokens() -> None:
    driver = radix_driver()
    driver.serve([1, 2, 3, 4])
    driver.serve([1, 2, 9])
    tokens = [
        node.tokens
        for root in driver.cache.roots()
        for top in root.children()
        for node in (top, *top.children())
    ]
    assert [list(one) for one in tokens] == [[1, 2], [3, 4], [9]]
    assert all(one.dtype == np.int32 for one in tokens)
    with pytest.raises(ValueError, match="read-only"):
        tokens[0][0] = 5


def test_what_is_no_node_cannot_be_reranked() -> None:
    class Confused(Deepest):
        def reranked(self) -> Any:
            return [3]

    driver = radix_driver(eviction=Confused())
    driver.serve(A)
    with pytest.raises(PolicyError, match=r"Confused\.reranked: 3 is no node of the cache"):
        driver.evict(1)


def test_a_priority_that_is_not_a_number_is_refused() -> None:
    class Undecided(EvictionPolicy):
        def priority(self, node: NodeView, now: int) -> float:
            return float("nan")

    with pytest.raises(PolicyError, match=r"Undecided.priority: nan of .* cannot be ranked"):
        radix_driver(eviction=Undecided()).serve(A)
