"""The tree of a run's prompts, and what each request found of it, for prefixes.js."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from testbed.core.request import Request
from testbed.metrics.prompt_paths import PromptPaths, prompt_paths

Ints = npt.NDArray[np.int64]
MAX_NODES = 3000
"""Beyond it, what the fewest requests share is folded, which a page could not show anyway."""


class NoPrompts(Exception):
    """What a run was asked is not known; the message, a sentence's end, says why."""


@dataclass(frozen=True)
class PromptTree:
    """A tree over prompts, each folded where only few share.

    nodes: parent (-1 of a root, always before its children), tokens of the edge (their mean where
    folded) and folded (how many requests end in a fold, else 0), as plain lists. node_of: the
    node where a request's prompt ends.
    """

    nodes: dict[str, Any]
    node_of: dict[int, int]


def prompt_tree(
    requests: Iterable[Request], served: Mapping[int, int], page_size: int
) -> PromptTree:
    """The tree of the served prompts, in whole pages; NoPrompts if they are not among `requests`.

    served: by request id, the prompt's length in tokens.
    """
    ids: list[int] = []

    def admitted() -> Iterable[Request]:
        for request in requests:
            if served.get(request.id) == len(request.prompt):
                ids.append(request.id)
                yield request

    paths = prompt_paths(admitted(), page_size, min_computed_tokens=0)
    if len(ids) < len(served) or not ids:
        raise NoPrompts("the workload of its config does not give the prompts that were served")
    return fold(paths, ids)


def fold(paths: PromptPaths, ids: list[int], max_nodes: int = MAX_NODES) -> PromptTree:
    """Fold subtrees that no more than some number of requests reach, the smallest that will do.

    Below each node, all such subtrees become one node that stands for the rest of these prompts.
    ids: by place in `paths`, the request's id.
    """
    above = np.array(paths.parent, dtype=np.int64)
    uses = np.bincount(np.array(paths.stored, dtype=np.int64), minlength=len(above))
    for node in reversed(range(len(above))):
        if above[node] >= 0:
            uses[above[node]] += uses[node]
    small = (above >= 0) & (uses <= _threshold(uses, above, max_nodes))
    parent: list[int] = []
    tokens: list[float] = []
    place: dict[int, int] = {}
    folds: dict[int, int] = {}
    for node in range(len(above)):
        own = paths.pages[node] * paths.page_size
        upper = place.get(paths.parent[node], -1)
        if not small[node]:
            place[node] = len(parent)
            parent.append(upper)
            tokens.append(own)
            continue
        if small[above[node]]:
            place[node] = upper
        elif upper in folds:
            place[node] = folds[upper]
        else:
            place[node] = folds[upper] = len(parent)
            parent.append(upper)
            tokens.append(0)
        # Every request that passes adds its part to the sum over the fold.
        tokens[place[node]] += own * int(uses[node])
    node_of = {request: place[node] for request, node in zip(ids, paths.stored, strict=True)}
    inside = set(folds.values())
    ends = Counter(node for node in node_of.values() if node in inside)
    widths = [round(total / max(ends[node], 1)) for node, total in enumerate(tokens)]
    nodes = {"parent": parent, "tokens": widths, "folded": [ends[i] for i in range(len(parent))]}
    return PromptTree(nodes, node_of)


def found_prefixes(tree: PromptTree, requests: pd.DataFrame) -> dict[str, Any]:
    """By request in order of admission: its node, the tokens it found, and when, in microseconds.

    requests: of one run; those that were never admitted, or are not in the tree, are left out.
    """
    rows = requests[(requests["admitted_step"] >= 0) & requests["request"].isin(tree.node_of)]
    rows = rows.sort_values(["admitted_s", "request"], kind="stable")
    return {
        "node": [tree.node_of[request] for request in rows["request"].tolist()],
        "cached": rows["cached_tokens"].tolist(),
        "prompt": rows["prompt_tokens"].tolist(),
        "admitted_us": np.rint(1e6 * rows["admitted_s"].to_numpy()).astype(np.int64).tolist(),
    }


def _threshold(uses: Ints, above: Ints, max_nodes: int) -> int:
    """How many requests make a subtree small: the least number, from 1, that keeps to max_nodes."""
    inner = above >= 0
    few = 1
    for few in sorted({1, *uses[inner].tolist()}):
        small = inner & (uses <= few)
        folds = len(np.unique(above[small & ~small[above]]))
        if np.count_nonzero(~small) + folds <= max_nodes:
            break
    return few
