"""The folded tree of prompts, against the prompts themselves."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.core.request import Request
from testbed.reports.page.prefixes import NoPrompts, PromptTree, found_prefixes, prompt_tree

PAGE = 2
PROMPTS = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=9), min_size=1, max_size=12)


def tree_of(prompts: list[list[int]]) -> PromptTree:
    requests = [
        Request(i, np.array(p, dtype=np.int32), max_new_tokens=1) for i, p in enumerate(prompts)
    ]
    tree = prompt_tree(requests, {i: len(p) for i, p in enumerate(prompts)}, PAGE)
    assert tree is not None
    return tree


def path(tree: PromptTree, request: int) -> list[int]:
    nodes = []
    node = tree.node_of[request]
    while node >= 0:
        nodes.append(node)
        node = tree.nodes["parent"][node]
    return nodes[::-1]


def shared(a: list[int], b: list[int]) -> int:
    """Tokens of the whole pages with which both begin."""
    pages = 0
    while a[PAGE * pages : PAGE * (pages + 1)] == b[PAGE * pages : PAGE * (pages + 1)]:
        if PAGE * (pages + 1) > min(len(a), len(b)):
            break
        pages += 1
    return PAGE * pages


@given(PROMPTS)
def test_prompts_share_exactly_the_nodes_of_their_common_pages(prompts: list[list[int]]) -> None:
    tree = tree_of(prompts)
    tokens, folded = tree.nodes["tokens"], tree.nodes["folded"]
    assert all(above < node for node, above in enumerate(tree.nodes["parent"]))
    for i, a in enumerate(prompts):
        for j in range(i):
            common = set(path(tree, i)) & set(path(tree, j))
            kept = sum(tokens[node] for node in common if not folded[node])
            assert kept == shared(a, prompts[j])


@given(PROMPTS)
def test_a_fold_stands_for_the_rests_of_its_prompts(prompts: list[list[int]]) -> None:
    tree = tree_of(prompts)
    for node, count in enumerate(tree.nodes["folded"]):
        if not count:
            continue
        inside = [i for i, end in tree.node_of.items() if end == node]
        assert len(inside) == count
        above = sum(tree.nodes["tokens"][n] for n in path(tree, inside[0])[:-1])
        rests = [len(prompts[i]) // PAGE * PAGE - above for i in inside]
        assert tree.nodes["tokens"][node] == round(sum(rests) / count)


def test_what_fewest_share_is_folded_first() -> None:
    # Three prompts share 8, two of them 8 more; then each goes its own way; a fourth is alone.
    root = [1] * 8
    prompts = [root + [2] * 8 + [3] * 4, root + [2] * 8 + [4] * 4, root + [5] * 4, [6] * 8]
    tree = tree_of(prompts)
    # Root; the shared 8 and 8; the rests of the first two, of the third, and of the fourth.
    assert len(tree.nodes["parent"]) == 6
    assert sorted(zip(tree.nodes["tokens"], tree.nodes["folded"], strict=True)) == [
        (0, 0), (4, 1), (4, 2), (8, 0), (8, 0), (8, 1),
    ]  # fmt: skip


def test_prompts_that_are_not_those_served_make_no_tree() -> None:
    request = Request(0, np.arange(4, dtype=np.int32), max_new_tokens=1)
    for served in ({0: 5}, {0: 4, 1: 4}):
        with pytest.raises(NoPrompts, match="does not give the prompts that were served"):
            prompt_tree([request], served, PAGE)


def test_requests_come_in_order_of_admission() -> None:
    tree = tree_of([[1, 1], [2, 2], [3, 3]])
    requests = pd.DataFrame(
        {
            "request": [0, 1, 2],
            "admitted_step": [5, 2, -1],
            "admitted_s": [2.5, 1.0, -1.0],
            "cached_tokens": [0, 1, 0],
            "prompt_tokens": [2, 2, 2],
        }
    )
    found = found_prefixes(tree, requests)
    assert found["node"] == [tree.node_of[1], tree.node_of[0]]
    assert found["cached"] == [1, 0] and found["admitted_us"] == [1_000_000, 2_500_000]
