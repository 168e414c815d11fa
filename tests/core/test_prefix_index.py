"""The shared index says what asking every cache in turn would say."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.core.prefix_index import PrefixIndex
from testbed.core.token_tree import TokenTree
from tests.core.building import tokens_of


def test_each_replica_ends_where_its_own_cache_does() -> None:
    index = PrefixIndex(replicas=4, page_size=1)
    index.on_store(0, 1, "", tokens_of([1, 2, 3, 4]), 0)
    index.on_store(1, 1, "", tokens_of([1, 2, 9]), 0)
    index.on_store(3, 1, "", tokens_of([1]), 0)
    assert index.lengths(tokens_of([1, 2, 3, 4, 5])) == [4, 2, 0, 1]
    assert index.lengths(tokens_of([1, 2, 9, 9])) == [2, 3, 0, 1]
    assert index.lengths(tokens_of([2])) == [0, 0, 0, 0]
    assert index.lengths(tokens_of([1, 2]), "other") == [0, 0, 0, 0]


def test_only_whole_pages_match() -> None:
    index = PrefixIndex(replicas=1, page_size=4)
    index.on_store(0, 1, "", tokens_of(range(8)), 0)
    assert index.lengths(tokens_of(range(7))) == [4]
    assert index.lengths(tokens_of([0, 1, 2, 3, 4, 5, 9, 7])) == [4]
    assert index.lengths(tokens_of(range(12))) == [8]


def test_a_trimmed_edge_is_short_for_one_replica_alone_and_nobodys_tokens_are_forgotten() -> None:
    index = PrefixIndex(replicas=2, page_size=1)
    prompt = tokens_of([1, 2, 3, 4])
    index.on_store(0, 7, "", prompt, 0)
    index.on_store(1, 5, "", prompt, 0)
    index.on_trim(0, 7, 2)
    assert index.lengths(prompt) == [2, 4]
    index.on_store(1, 6, "", tokens_of([1, 2, 3, 8]), 3)  # Splits beyond what replica 0 has.
    assert index.lengths(prompt) == [2, 4]
    index.on_trim(1, 6, 3)
    index.on_trim(1, 5, 0)
    assert index.lengths(prompt) == [2, 0]
    index.on_store(0, 8, "", prompt, 2)
    assert index.lengths(prompt) == [4, 0]
    index.on_trim(0, 8, 2)
    index.on_trim(0, 7, 0)
    assert index.lengths(prompt) == [0, 0]
    assert index.num_nodes == 0


class Caches:
    """Prefix sets of a few replicas, grown by publishing and shrunk from the tails, as caches do.

    A run is the tokens that one store added; only a tail that nothing continues may go.
    """

    def __init__(self, replicas: int, page_size: int) -> None:
        self.page_size = page_size
        self.held: list[set[tuple[int, ...]]] = [set() for _ in range(replicas)]
        self.runs: list[dict[int, tuple[tuple[int, ...], int, int]]] = [{} for _ in range(replicas)]

    def match(self, replica: int, prompt: tuple[int, ...]) -> int:
        length = 0
        while length < len(prompt) and prompt[: length + self.page_size] in self.held[replica]:
            length += self.page_size
        return length

    def prefixes(self, prompt: tuple[int, ...], start: int, end: int) -> set[tuple[int, ...]]:
        size = self.page_size
        return {prompt[:depth] for depth in range(start + size, end + 1, size)}

    def trimmable(self, replica: int) -> list[int]:
        """Runs whose last page nothing continues."""
        held = self.held[replica]
        return [
            run
            for run, (prompt, _, end) in self.runs[replica].items()
            if not any(len(p) > end and p[:end] == prompt[:end] for p in held)
        ]


@given(st.data(), st.sampled_from([1, 2]), st.integers(1, 3))
def test_stores_and_trims_in_any_order_match_a_set_of_prefixes(
    data: st.DataObject, page_size: int, replicas: int
) -> None:
    caches = Caches(replicas, page_size)
    index = PrefixIndex(replicas, page_size)
    prompts = st.lists(st.integers(0, 1), min_size=1, max_size=6).map(
        lambda pages: tuple(page for page in pages for _ in range(page_size))
    )
    for run in range(1, data.draw(st.integers(1, 20)) + 1):
        replica = data.draw(st.integers(0, replicas - 1))
        candidates = caches.trimmable(replica)
        if candidates and data.draw(st.booleans()):
            number = data.draw(st.sampled_from(candidates))
            prompt, start, end = caches.runs[replica][number]
            new = page_size * data.draw(st.integers(start // page_size, end // page_size - 1))
            gone = caches.prefixes(prompt, new, end)
            # Nothing may hang from what goes.
            if any(p[:-page_size] in gone and p not in gone for p in caches.held[replica]):
                continue
            caches.held[replica] -= gone
            caches.runs[replica][number] = (prompt, start, new)
            if new == start:
                del caches.runs[replica][number]
            index.on_trim(replica, number, new)
        else:
            prompt = data.draw(prompts)
            start = caches.match(replica, prompt)
            if start < len(prompt):
                caches.held[replica] |= caches.prefixes(prompt, start, len(prompt))
                caches.runs[replica][run] = (prompt, start, len(prompt))
                index.on_store(replica, run, "", tokens_of(prompt), start)
        probe = data.draw(prompts)
        expected = [caches.match(replica, probe) for replica in range(replicas)]
        assert index.lengths(tokens_of(probe)) == expected
    for replica in range(replicas):
        while caches.held[replica]:
            number = caches.trimmable(replica)[0]
            prompt, start, end = caches.runs[replica].pop(number)
            caches.held[replica].remove(prompt[:end])
            if end - page_size > start:
                caches.runs[replica][number] = (prompt, start, end - page_size)
            index.on_trim(replica, number, end - page_size)
    assert index.num_nodes == 0


def test_a_tree_without_state_keeps_what_was_inserted() -> None:
    tree = TokenTree()
    assert tree.match(tokens_of([1])) == []
    first = tree.insert(tokens_of([1, 2, 3]))
    assert [(node.start, node.end) for node in first] == [(0, 3)]
    second = tree.insert(tokens_of([1, 2, 4]))
    assert [(node.start, node.end) for node in second] == [(0, 2), (2, 3)]
    assert [(node.end, depth) for node, depth in tree.match(tokens_of([1, 2, 3, 9]))] == [
        (2, 2),
        (3, 3),
    ]
    # Whoever held the node that was split still holds its end.
    assert first[0].end == 3 and first[0].start == 2
    assert np.array_equal(first[0].tokens, [3])
    with pytest.raises(AssertionError):
        tree.remove(second[0])
    tree.remove(first[0])
    assert tree.num_nodes == 2
