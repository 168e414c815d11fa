"""A radix tree as a table, at one moment of a run."""

from __future__ import annotations

from collections.abc import Iterable
from types import MappingProxyType

import pandas as pd

from testbed.core.views import NodeView

TREE_COLUMNS = MappingProxyType(
    {
        "parent": "row of the parent; -1 below a root",
        "namespace": "number of the root, by first use",
        "start": "depth in tokens where the edge begins",
        "tokens": "tokens on the edge",
        "children": "nodes right below",
        "hits": "requests that passed since the insertion, the inserting one included",
        "last_access": "step of the newest admission or insertion that passed",
        "created": "step of the insertion",
        "locks": "running sequences whose path passes",
    }
)


def tree_table(roots: Iterable[NodeView]) -> pd.DataFrame:
    """Every node of the tree by TREE_COLUMNS, all int64; depth first, siblings by insertion."""
    rows: list[tuple[int, ...]] = []
    for namespace, root in enumerate(roots):
        stack = [(child, -1) for child in reversed(list(root.children()))]
        while stack:
            node, parent = stack.pop()
            place = len(rows)
            rows.append(
                (
                    parent,
                    namespace,
                    node.end - node.num_tokens,
                    node.num_tokens,
                    node.num_children,
                    node.hits,
                    node.last_access,
                    node.created,
                    node.locks,
                )
            )
            stack += [(child, place) for child in reversed(list(node.children()))]
    return pd.DataFrame(rows, columns=list(TREE_COLUMNS), dtype="int64")
