"""The distinct prefixes of a workload as a compressed trie over pages, and each request's path.

Pages between two branch points are always used together, so a bound can treat them as one weighted
node, of which a long trace has far fewer than it has page references.
Tokens are compared, not hashed: the result is exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from testbed.core.request import Request, Tokens
from testbed.core.token_tree import TokenTree, TreeNode


@dataclass(frozen=True)
class PromptPaths:
    """One path a request through the trie; a node comes after its parent.

    page_size: tokens a page. parent, pages: by node; the parent of the root is -1 and it has no
    pages. The others are by request, in the order given: lookup: the node where the pages end that
    a match may return. stored: the node where the pages end that the request leaves in the cache;
    it is `lookup` or below it. prompt_tokens: the prompt's length.
    """

    page_size: int
    parent: list[int] = field(default_factory=list)
    pages: list[int] = field(default_factory=list)
    lookup: list[int] = field(default_factory=list)
    stored: list[int] = field(default_factory=list)
    prompt_tokens: list[int] = field(default_factory=list)


def prompt_paths(
    requests: Iterable[Request],
    page_size: int,
    *,
    min_computed_tokens: int = 1,
    cache_outputs: bool = False,
) -> PromptPaths:
    """Paths of the requests' full pages; memory is 4 bytes for each distinct prefix token.

    min_computed_tokens: prompt tokens that a match must leave over (0 for exact serial theory).
    cache_outputs: scripted outputs, less the last token, stay in the cache too.
    """
    _check_page_size(page_size)
    paths = _Paths(page_size, page_size)
    for request in requests:
        length = len(request.prompt)
        sequence = request.prompt
        if cache_outputs and request.output is not None:
            num_output = min(len(request.output), request.max_new_tokens)
            sequence = np.concatenate((request.prompt, request.output[: max(num_output - 1, 0)]))
        full = sequence[: len(sequence) // page_size * page_size]
        paths.add(full, (length - min_computed_tokens) // page_size, length, request.namespace)
    return paths.numbered()


def block_paths(
    blocks: Iterable[Sequence[int]],
    prompt_tokens: Iterable[int],
    block_size: int,
    *,
    min_computed_tokens: int = 0,
) -> PromptPaths:
    """Paths of requests given as block ids, as block-hash traces do; the last may be partial.

    prompt_tokens: one length a request. Every id listed occupies one page.
    """
    _check_page_size(block_size)
    paths = _Paths(1, block_size)
    for row, length in zip(blocks, prompt_tokens, strict=True):
        num_lookup = len(row)
        if min_computed_tokens:
            num_lookup = min(num_lookup, (length - min_computed_tokens) // block_size)
        paths.add(np.asarray(row, dtype=np.int32), num_lookup, length, "")
    return paths.numbered()


class _Paths:
    """Collects where requests end in a tree, whose nodes get numbers once it no longer changes."""

    def __init__(self, page_ids: int, page_size: int) -> None:
        self._tree = TokenTree(page_ids)
        self._page_ids = page_ids
        self._page_size = page_size
        self._ends: list[tuple[TreeNode | None, TreeNode | None]] = []
        self._prompt_tokens: list[int] = []

    def add(self, ids: Tokens, num_lookup: int, prompt_tokens: int, namespace: str) -> None:
        """Append a request: `ids` are whole pages, of which the first num_lookup are looked up."""
        lookup = self._tree.insert(ids[: num_lookup * self._page_ids], namespace)
        stored = self._tree.insert(ids, namespace)
        # A later split leaves the lower half in place, so that paths still end there.
        self._ends.append((lookup[-1] if lookup else None, stored[-1] if stored else None))
        self._prompt_tokens.append(prompt_tokens)

    def numbered(self) -> PromptPaths:
        """The paths; the root is node 0."""
        paths = PromptPaths(self._page_size, [-1], [0], prompt_tokens=self._prompt_tokens)
        numbers: dict[TreeNode, int] = {}

        def number(node: TreeNode | None) -> int:
            chain = []
            while node is not None and node.parent is not None and node not in numbers:
                chain.append(node)
                node = node.parent
            found = 0 if node is None or node.parent is None else numbers[node]
            for below in reversed(chain):
                paths.parent.append(found)
                paths.pages.append(len(below.tokens) // self._page_ids)
                found = numbers[below] = len(paths.parent) - 1
            return found

        for lookup, stored in self._ends:
            paths.lookup.append(number(lookup))
            paths.stored.append(number(stored))
        return paths


def _check_page_size(page_size: int) -> None:
    if page_size < 1:
        raise ValueError(f"page_size={page_size}: at least 1 is needed")
