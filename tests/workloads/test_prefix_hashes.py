from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.workloads.page_counts import PageCounts
from testbed.workloads.prefix_hashes import PrefixHasher, hash_of_text
from testbed.workloads.prefix_tree import PrefixTree

PROMPTS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=9), min_size=1, max_size=12)


def tokens(prompt: list[int]) -> np.ndarray:
    return np.array(prompt, dtype=np.int32)


@given(PROMPTS, st.integers(1, 4))
def test_hashes_agree_exactly_where_prefixes_do(prompts: list[list[int]], page_size: int) -> None:
    hasher = PrefixHasher(page_size)
    full: dict[int, tuple[int, ...]] = {}
    every: dict[int, tuple[int, ...]] = {}
    for prompt in prompts:
        hashes = hasher.full_pages(tokens(prompt)).tolist()
        assert len(hashes) == len(prompt) // page_size
        for i, value in enumerate(hashes):
            assert full.setdefault(value, tuple(prompt[: (i + 1) * page_size])) == tuple(
                prompt[: (i + 1) * page_size]
            )
        with_rest = hasher.pages(tokens(prompt)).tolist()
        assert with_rest[: len(hashes)] == hashes
        assert len(with_rest) == -(-len(prompt) // page_size)
        for i, value in enumerate(with_rest):
            prefix = tuple(prompt[: (i + 1) * page_size])
            assert every.setdefault(value, prefix) == prefix
    assert len(set(full.values())) == len(full) and len(set(every.values())) == len(every)


def test_regular_pages_do_not_collide() -> None:
    """Blocks as a Mooncake trace expands them, and constant ones, in all orders of two."""
    hasher = PrefixHasher(64)
    blocks = [np.arange(i * 64, i * 64 + 64, dtype=np.int32) for i in range(60)]
    blocks += [np.full(64, i, dtype=np.int32) for i in range(60)]
    seen = {int(hasher.full_pages(np.concatenate((a, b)))[-1]) for a in blocks for b in blocks}
    assert len(seen) == len(blocks) ** 2


def test_a_bad_page_size() -> None:
    with pytest.raises(ValueError, match=r"PrefixHasher\.page_size=0: a whole number"):
        PrefixHasher(0)
    assert hash_of_text("a") != hash_of_text("b")


@given(PROMPTS, st.integers(1, 3), st.integers(1, 5))
def test_page_counts_are_those_of_a_dictionary(
    prompts: list[list[int]], page_size: int, merge_every: int
) -> None:
    hasher, counts = PrefixHasher(page_size), PageCounts()
    lookups: Counter[int] = Counter()
    stores: Counter[int] = Counter()
    for i, prompt in enumerate(prompts):
        hashes = hasher.full_pages(tokens(prompt))
        looked_up = (len(prompt) - 1) // page_size
        counts.add(hashes, looked_up)
        lookups.update(hashes[:looked_up].tolist())
        stores.update(hashes[looked_up:].tolist())
        if i % merge_every == 0:
            counts.merge()
    known = np.array(sorted(set(lookups) | set(stores)), dtype=np.uint64)
    assert counts.counts(known).tolist() == [lookups[h] + stores[h] for h in known.tolist()]
    assert counts.hashes.tolist() == known.tolist()
    hits = sum(n - (0 if stores[h] else 1) for h, n in lookups.items())
    assert counts.hit_pages().sum() == hits


def test_page_counts_by_owner() -> None:
    counts = PageCounts()
    a, b = (np.array(h, dtype=np.uint64) for h in ([1, 2], [3]))
    counts.add(a, 2, owner=0)
    twin = counts.copy()
    twin.add(a, 2, owner=0)
    twin.add(b, 1, owner=2)
    twin.add(b, 1, owner=2)
    assert twin.hit_pages().tolist() == [2, 0, 1]
    assert counts.hit_pages().tolist() == [0]
    assert PageCounts().hit_pages().tolist() == []


@given(PROMPTS)
def test_the_tree_knows_who_used_a_prefix_last(prompts: list[list[int]]) -> None:
    hasher, tree = PrefixHasher(1), PrefixTree()
    seen: list[list[int]] = []
    for prompt in prompts:
        path = hasher.full_pages(tokens(prompt))
        node, depth = tree.match(path)
        shared = [
            next(
                (i for i, (a, b) in enumerate(zip(p, prompt, strict=False)) if a != b),
                min(len(p), len(prompt)),
            )
            for p in seen
        ]
        assert depth == max(shared, default=0)
        if depth:
            users = [i for i, s in enumerate(shared) if s >= depth]
            longer = {tuple(seen[i][: depth + 1]) for i in users if len(seen[i]) > depth}
            ended = any(len(seen[i]) == depth for i in users)
            assert tree.latest[node] == users[-1]
            assert tree.start[node] < depth <= tree.end[node]
            # A node ends here if somebody ended here, or not all went on alike.
            assert (tree.end[node] == depth) == (ended or len(longer) > 1)
            assert tree.is_leaf[node] == (not longer) or tree.end[node] > depth
            assert tree.node_at(users[-1], depth) == node
            assert tree.prefix(node, depth).tolist() == path[:depth].tolist()
        tree.add(path)
        seen.append(prompt)
        assert tree.latest[tree.end_node[-1]] == len(seen) - 1


def test_a_prompt_without_a_page_ends_nowhere() -> None:
    tree = PrefixTree()
    tree.add(np.empty(0, dtype=np.uint64))
    assert tree.end_node == [-1] and tree.match(np.array([1], dtype=np.uint64)) == (-1, 0)
