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


@dataclass(frozen=True)
class PromptPaths:
    """One path a request through the trie; a node's number says nothing about its depth.

    page_size: tokens a page. parent, pages: by node; the parent of a root is -1 and a root has no
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
    trie = _Trie(page_size, page_size)
    for request in requests:
        length = len(request.prompt)
        sequence = request.prompt
        if cache_outputs and request.output is not None:
            num_output = min(len(request.output), request.max_new_tokens)
            sequence = np.concatenate((request.prompt, request.output[: max(num_output - 1, 0)]))
        full = sequence[: len(sequence) // page_size * page_size]
        trie.add(full, (length - min_computed_tokens) // page_size, length, request.namespace)
    return trie.paths


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
    trie = _Trie(1, block_size)
    for row, length in zip(blocks, prompt_tokens, strict=True):
        num_lookup = len(row)
        if min_computed_tokens:
            num_lookup = min(num_lookup, (length - min_computed_tokens) // block_size)
        trie.add(np.asarray(row, dtype=np.int32), num_lookup, length, "")
    return trie.paths


class _Trie:
    """Holds the tokens while the paths are built; freed afterwards."""

    def __init__(self, page_ids: int, page_size: int) -> None:
        self.paths = PromptPaths(page_size)
        self._page_ids = page_ids
        self._edges: list[Tokens] = []
        self._children: list[dict[bytes, int]] = []
        self._roots: dict[str, int] = {}

    def add(self, ids: Tokens, num_lookup: int, prompt_tokens: int, namespace: str) -> None:
        """Append a request: `ids` are whole pages, of which the first num_lookup are looked up."""
        root = self._roots.get(namespace)
        if root is None:
            root = self._roots[namespace] = self._new_node(-1, ids[:0])
        split = num_lookup * self._page_ids
        lookup = self._descend(root, ids[:split])
        self.paths.lookup.append(lookup)
        self.paths.stored.append(self._descend(lookup, ids[split:]))
        self.paths.prompt_tokens.append(prompt_tokens)

    def _descend(self, node: int, ids: Tokens) -> int:
        """The node where `ids` end below `node`, made if it is not there."""
        position = 0
        while position < len(ids):
            key = ids[position : position + self._page_ids].tobytes()
            child = self._children[node].get(key)
            if child is None:
                # A copy, so that a streamed prompt is not kept alive by its last few pages.
                child = self._children[node][key] = self._new_node(node, ids[position:].copy())
                return child
            edge = self._edges[child]
            rest = ids[position : position + len(edge)]
            differs = edge[: len(rest)] != rest
            same = int(differs.argmax()) if differs.any() else len(rest)
            same -= same % self._page_ids
            node = child if same == len(edge) else self._split(child, key, same)
            position += same
        return node

    def _new_node(self, parent: int, edge: Tokens) -> int:
        self.paths.parent.append(parent)
        self.paths.pages.append(len(edge) // self._page_ids)
        self._edges.append(edge)
        self._children.append({})
        return len(self._edges) - 1

    def _split(self, lower: int, key: bytes, length: int) -> int:
        """Cut the edge after `length` ids; requests that end below still end at `lower`."""
        edge = self._edges[lower]
        parent = self.paths.parent[lower]
        upper = self._children[parent][key] = self._new_node(parent, edge[:length])
        self._children[upper][edge[length : length + self._page_ids].tobytes()] = lower
        self._edges[lower] = edge[length:]
        self.paths.parent[lower] = upper
        self.paths.pages[lower] -= self.paths.pages[upper]
        return upper


def _check_page_size(page_size: int) -> None:
    if page_size < 1:
        raise ValueError(f"page_size={page_size}: at least 1 is needed")
