"""The icicle: where each node's band lies."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.collections import PolyCollection

from testbed.metrics.tree import TREE_COLUMNS
from testbed.reports.tree import icicle_figure, icicle_table, layout


def tree(parents: list[int], tokens: list[int], hits: list[int], locks: list[int]) -> pd.DataFrame:
    starts: list[int] = []
    for parent in parents:
        starts.append(starts[parent] + tokens[parent] if parent >= 0 else 0)
    nodes = pd.DataFrame(0, index=range(len(parents)), columns=list(TREE_COLUMNS))
    children = [parents.count(place) for place in range(len(parents))]
    return nodes.assign(
        parent=parents, start=starts, tokens=tokens, children=children, hits=hits, locks=locks
    )


# a (4 tokens) over b (2) and c (3); c over d and e (1 each); f (5) alone.
NODES = tree([-1, 0, 0, 2, 2, -1], [4, 2, 3, 1, 1, 5], [9, 1, 5, 2, 3, 1], [1, 1, 0, 0, 0, 0])


def test_children_divide_their_parent_s_band() -> None:
    top, height = layout(NODES)
    assert height.tolist() == [3, 1, 2, 1, 1, 1]
    assert top.tolist() == [0, 0, 1, 1, 2, 3]


def test_a_node_is_as_wide_as_its_tokens_and_outlined_if_it_is_locked() -> None:
    table = icicle_table({"1 s": NODES})
    figure = icicle_figure(table, {"1 s": 7})
    nodes, locked = (c for c in figure.axes[0].collections if isinstance(c, PolyCollection))
    boxes = [(*path.vertices.min(0), *path.vertices.max(0)) for path in nodes.get_paths()]
    assert boxes[2] == (4, 1, 7, 3)
    assert boxes[5] == (0, 3, 5, 4)
    assert len(locked.get_paths()) == 2
    assert np.unique(nodes.get_facecolors(), axis=0).shape[0] == len({9, 1, 5, 2, 3})


def test_an_empty_tree_is_an_empty_panel() -> None:
    empty = NODES.iloc[:0]
    figure = icicle_figure(icicle_table({"0 s": empty, "1 s": NODES}), {"0 s": 0, "1 s": 7})
    assert [axes.get_title() for axes in figure.axes[:2]] == ["0 s", "1 s"]
