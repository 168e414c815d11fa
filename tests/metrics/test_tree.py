"""The table of a radix tree, of one that was made by hand."""

from __future__ import annotations

import numpy as np

from testbed.core.radix_tree import RadixTree
from testbed.metrics.tree import TREE_COLUMNS, tree_table


def test_parents_come_first_and_every_namespace_is_there() -> None:
    tree = RadixTree(page_size=1)

    def tokens(*values: int) -> np.ndarray:
        return np.array(values, dtype=np.int32)

    stem = tree.add_leaf(tree.root(""), tokens(1, 2, 3), tokens(0, 1, 2))
    tree.add_leaf(stem, tokens(4), tokens(3))
    lower = tree.add_leaf(stem, tokens(5, 6), tokens(4, 5))
    other = tree.add_leaf(tree.root("other"), tokens(1), tokens(6))
    lower.hits, lower.last_access, lower.created = 7, 8, 5
    tree.lock(lower)
    other.hits = 2
    table = tree_table(root.view for root in tree.roots())
    assert list(table) == list(TREE_COLUMNS)
    assert table.values.tolist() == [
        [-1, 0, 0, 3, 2, 0, 0, 0, 1],
        [0, 0, 3, 1, 0, 0, 0, 0, 0],
        [0, 0, 3, 2, 0, 7, 8, 5, 1],
        [-1, 1, 0, 1, 0, 2, 0, 0, 0],
    ]


def test_an_empty_cache_has_no_rows() -> None:
    assert len(tree_table(iter(()))) == 0
