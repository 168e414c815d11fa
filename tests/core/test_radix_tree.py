"""The tree's structure: match, split, grow, shrink, lock; numbered rows are peers' test cases."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.core.page_pool import Pages
from testbed.core.radix_tree import Node, RadixTree
from testbed.core.request import Tokens
from tests.core.building import tokens_of


def insert(tree: RadixTree, tokens: Tokens, namespace: str = "", first_page: int = 0) -> int:
    """Insert the whole pages of the tokens; returns how many tokens were there already."""
    size = tree.page_size
    node, depth = tree.match(tokens, namespace)
    whole = len(tokens) - len(tokens) % size
    if depth < node.end:
        node = tree.split(node, depth)
    if depth < whole:
        pages = np.arange(first_page + depth // size, first_page + whole // size, dtype=np.int32)
        tree.add_leaf(node, tokens[depth:whole], pages)
    return depth


def pages_of(node: Node) -> list[int]:
    return [page for passed in reversed(list(node.path())) for page in passed.pages.tolist()]


def matched(tree: RadixTree, *tokens: int, namespace: str = "") -> int:
    return tree.match(tokens_of(tokens), namespace)[1]


def num_tokens(tree: RadixTree) -> int:
    return sum(len(node.tokens) for node in tree.nodes())


def test_an_empty_tree_holds_nothing() -> None:  # rows 7, 12
    tree = RadixTree(1)
    assert matched(tree, 1, 2, 3) == 0
    assert list(tree.nodes()) == []
    assert (tree.num_nodes, tree.num_pages, tree.num_locked_pages) == (0, 0, 0)
    root = tree.root("")
    assert (root.end, len(root.tokens), root.parent) == (0, 0, None)


def test_a_prefix_of_what_was_inserted_matches_its_pages() -> None:  # row 8
    tree = RadixTree(1)
    assert insert(tree, tokens_of([1, 2, 3])) == 0
    assert tree.num_pages == 3
    node, depth = tree.match(tokens_of([1, 2, 3]))
    assert (depth, pages_of(node)) == (3, [0, 1, 2])
    node, depth = tree.match(tokens_of([1, 2]))
    assert (depth, pages_of(node)[:depth]) == (2, [0, 1])


def test_two_prompts_without_a_common_prefix_are_two_leaves() -> None:  # row 11
    tree = RadixTree(1)
    insert(tree, tokens_of([1, 2, 3]))
    insert(tree, tokens_of([4, 5]), first_page=3)
    assert num_tokens(tree) == 5
    assert sorted(p for node in tree.nodes() for p in node.pages.tolist()) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("page", [1, 4])
def test_two_tails_share_one_base(page: int) -> None:  # row 14
    tree = RadixTree(page)
    base = list(range(2 * page))
    tails = {name: [100 * ord(name) + i for i in range(2 * page)] for name in "XYZ"}
    insert(tree, tokens_of(base))
    for name in "XY":
        assert insert(tree, tokens_of(base + tails[name]), first_page=10) == 2 * page
    for name in "XY":
        assert matched(tree, *base, *tails[name]) == 4 * page
    assert matched(tree, *base, *tails["Z"]) == 2 * page
    assert num_tokens(tree) == 6 * page


@pytest.mark.parametrize("page", [1, 2])
def test_diverging_inside_an_edge(page: int) -> None:  # row 15
    tree = RadixTree(page)
    first, second = [1, 2, 3, 4, 5, 6, 7, 8], [1, 2, 9, 10]
    insert(tree, tokens_of(first))
    assert insert(tree, tokens_of(second), first_page=8) == 2
    assert num_tokens(tree) == 10
    assert matched(tree, 1, 2, 3, 4, 999, 1000) == 4
    assert num_tokens(tree) == 10
    assert matched(tree, *first) == 8
    assert matched(tree, 1, 2, 3, 4, 5, 6, 777, 888) == 6
    assert matched(tree, *second) == 4


def test_namespaces_never_share() -> None:  # rows 17, 18
    tree = RadixTree(1)
    insert(tree, tokens_of([1, 2, 3]), namespace="a")
    assert matched(tree, 1, 2, 3, namespace="a") == 3
    for other in ("", "b", "aa"):
        assert matched(tree, 1, 2, 3, namespace=other) == 0


def test_inserting_twice_adds_nothing() -> None:  # row 19
    tree = RadixTree(1)
    insert(tree, tokens_of([1, 2, 3]))
    assert insert(tree, tokens_of([1, 2, 3])) == 3
    assert (num_tokens(tree), tree.num_nodes) == (3, 1)


def test_a_match_that_ends_inside_an_edge_does_not_split_it() -> None:  # row 21, but not mutating
    tree = RadixTree(1)
    insert(tree, tokens_of([1, 2, 3, 4]))
    node, depth = tree.match(tokens_of([1, 2, 7]))
    assert (depth, node.end, tree.num_nodes, num_tokens(tree)) == (2, 4, 1, 4)


@pytest.mark.parametrize("page", [4, 16, 64])
def test_only_whole_pages_enter_and_match(page: int) -> None:  # rows 26, 27
    tree = RadixTree(page)
    prompt = list(range(3 * page - 1))
    insert(tree, tokens_of(prompt))
    assert tree.num_pages == 2
    assert matched(tree, *prompt) == 2 * page
    assert matched(tree, *prompt[: page - 1]) == 0
    inside_second = [*prompt[: page + 1], -1, *prompt[page + 2 :]]
    assert matched(tree, *inside_second) == page
    assert matched(tree, -1, *prompt[1:]) == 0


def test_diverging_inside_a_page_duplicates_the_page() -> None:  # row 28
    tree = RadixTree(4)
    insert(tree, tokens_of(range(1, 9)))
    assert insert(tree, tokens_of([1, 2, 3, 4, 5, 6, 9, 9]), first_page=2) == 4
    assert num_tokens(tree) == 12


def test_a_split_keeps_the_lower_object_and_copies_the_rest() -> None:
    tree = RadixTree(2)
    insert(tree, tokens_of([1, 2, 3, 4, 5, 6]))
    (lower,) = tree.nodes()
    lower.last_access, lower.created, lower.hits, lower.state = 7, 3, 5, "mine"
    tree.lock(lower)
    upper = tree.split(lower, 4)
    assert [upper.tokens.tolist(), lower.tokens.tolist()] == [[1, 2, 3, 4], [5, 6]]
    assert [upper.pages.tolist(), lower.pages.tolist()] == [[0, 1], [2]]
    assert (upper.start, upper.end, lower.start, lower.end) == (0, 4, 4, 6)
    assert (lower.parent, upper.parent) == (upper, tree.root(""))
    assert (upper.last_access, upper.created, upper.hits, upper.locks) == (7, 3, 5, 1)
    assert (lower.last_access, lower.created, lower.hits, lower.locks) == (7, 3, 5, 1)
    assert (upper.serial, upper.state, lower.state) == (lower.serial, None, "mine")
    assert (tree.num_nodes, tree.num_pages, tree.num_locked_pages) == (2, 3, 3)
    tree.unlock(lower)
    assert tree.num_locked_pages == 0


def test_a_locked_node_and_its_ancestors_count_as_locked() -> None:  # rows 32, 36
    tree = RadixTree(1)
    insert(tree, tokens_of([1, 2, 3]))
    insert(tree, tokens_of([1, 2, 3, 4]), first_page=0)
    inner, _ = tree.match(tokens_of([1, 2, 3]))
    leaf, _ = tree.match(tokens_of([1, 2, 3, 4]))
    tree.lock(inner)
    assert (tree.num_locked_pages, inner.evictable, leaf.evictable) == (3, False, True)
    tree.lock(leaf, above=inner)
    assert (tree.num_locked_pages, inner.locks, leaf.locks) == (4, 1, 1)
    tree.unlock(leaf)
    assert (tree.num_locked_pages, inner.locks, leaf.locks) == (0, 0, 0)


def test_an_unlock_without_a_lock_is_refused() -> None:  # rows 38, 39
    tree = RadixTree(1)
    insert(tree, tokens_of([1, 2, 3]))
    (leaf,) = tree.nodes()
    with pytest.raises(ValueError, match="unlock without lock"):
        tree.unlock(leaf)
    assert leaf.locks == 0
    tree.lock(leaf)
    tree.unlock(leaf)
    assert leaf.locks == 0


def test_truncating_and_removing_give_the_pages_back() -> None:
    tree = RadixTree(2)
    insert(tree, tokens_of(range(10)))
    (leaf,) = tree.nodes()
    assert tree.truncate(leaf, 2).tolist() == [3, 4]
    assert (leaf.end, leaf.tokens.tolist(), leaf.pages.tolist()) == (6, list(range(6)), [0, 1, 2])
    assert matched(tree, *range(10)) == 6
    assert insert(tree, tokens_of(range(10)), first_page=5) == 6
    leaf, _ = tree.match(tokens_of(range(10)))
    assert tree.remove(leaf).tolist() == [8, 9]
    assert (tree.num_pages, tree.num_nodes, matched(tree, *range(10))) == (3, 1, 6)


def test_nodes_come_parents_first_and_by_insertion() -> None:
    tree = RadixTree(1)
    for prompt in ([5, 1], [5, 2], [3], [5, 1, 9]):
        insert(tree, tokens_of(prompt))
    insert(tree, tokens_of([1]), namespace="n")
    ends = [(node.tokens.tolist(), node.end) for node in tree.nodes()]
    assert ends == [([5], 1), ([1], 2), ([9], 3), ([2], 2), ([3], 1), ([1], 1)]


def test_sharing_a_prefix_keeps_no_whole_prompt_alive() -> None:  # row 23
    tree = RadixTree(1)
    shared = np.arange(10_000, dtype=np.int32)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(500):
            own = np.arange(10_000 + 100 * number, 10_100 + 100 * number, dtype=np.int32)
            insert(tree, np.concatenate((shared, own)))
        held = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert num_tokens(tree) == 10_000 + 500 * 100
    # A token id and a page id are 4 bytes each; 500 whole prompts would be 20 MB of token ids.
    assert held < 2 * num_tokens(tree) * 8 + 500 * 2_000


def test_both_halves_of_a_split_have_memory_of_their_own() -> None:
    tree = RadixTree(1)
    insert(tree, np.arange(100_000, dtype=np.int32))
    (lower,) = tree.nodes()
    upper = tree.split(lower, 99_000)
    for array in (upper.tokens, upper.pages, lower.tokens, lower.pages):
        assert array.base is None


def test_truncating_page_by_page_keeps_no_whole_edge_alive() -> None:
    tree = RadixTree(1)
    insert(tree, np.arange(100_000, dtype=np.int32))
    (leaf,) = tree.nodes()
    for _ in range(999):
        tree.truncate(leaf, 100)
    assert len(leaf.tokens) == 100
    assert leaf.tokens.base is None or leaf.tokens.base.size <= 200


page_lists = st.lists(st.lists(st.integers(0, 2), max_size=6), max_size=12)


@given(page_lists, st.sampled_from([1, 2, 3]), st.lists(st.sampled_from(["", "n"]), min_size=12))
def test_the_tree_is_the_set_of_inserted_prefixes(
    prompts: list[list[int]], page: int, namespaces: list[str]
) -> None:
    tree = RadixTree(page)
    prefixes: set[tuple[str, tuple[int, ...]]] = set()
    for prompt, namespace in zip(prompts, namespaces, strict=False):
        insert(tree, tokens_of(prompt), namespace)
        ends = range(page, len(prompt) + 1, page)
        prefixes |= {(namespace, tuple(prompt[:end])) for end in ends}
        assert tree.num_pages == len(prefixes)
    for prompt, namespace in zip(prompts, reversed(namespaces), strict=False):
        ends = range(page, len(prompt) + 1, page)
        longest = max((e for e in ends if (namespace, tuple(prompt[:e])) in prefixes), default=0)
        assert matched(tree, *prompt, namespace=namespace) == longest


def test_pages_never_depend_on_the_caller_s_arrays() -> None:
    tree = RadixTree(1)
    tokens, pages = tokens_of([1, 2, 3]), np.arange(3, dtype=np.int32)
    leaf = tree.add_leaf(tree.root(""), tokens, pages)
    tokens[:], pages[:] = 9, 9
    held: Pages = leaf.pages
    assert (leaf.tokens.tolist(), held.tolist()) == ([1, 2, 3], [0, 1, 2])
