"""A radix cache without a tree: a dictionary of page prefixes, searched from end to end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from testbed.core.request import Sequence

Prefix = tuple[str, tuple[int, ...]]
"""A namespace, and all tokens up to the end of a page."""


@dataclass
class CachedPage:
    """ends_node: a node of the tree ends with this page, so that eviction by node stops here."""

    created: int
    serial: int
    last_access: int
    hits: int = 1
    locks: int = 1
    ends_node: bool = False


Rank = Callable[[CachedPage], Any]


class NaiveRadix:
    """What a RadixCache must hold, told by the same verbs; `rank`: the smallest leaves first."""

    def __init__(
        self, num_pages: int, page_size: int, rank: Rank, by_node: bool, touch_lower: bool
    ) -> None:
        self.pages: dict[Prefix, CachedPage] = {}
        self.step = 0
        self._num_pages = num_pages
        self._size = page_size
        self._rank = rank
        self._by_node = by_node
        self._touch_lower = touch_lower
        self._locked: dict[Sequence, list[Prefix]] = {}
        self._next_serial = 1

    def match(self, sequence: Sequence) -> int:
        """Leading tokens that are cached."""
        matched = 0
        for prefix in self._prefixes(sequence, len(sequence.tokens)):
            if prefix not in self.pages:
                break
            matched += self._size
        return matched

    def acquire(self, sequence: Sequence, num_tokens: int) -> None:
        path = list(self._prefixes(sequence, num_tokens))
        for prefix in path:
            page = self.pages[prefix]
            page.hits += 1
            page.locks += 1
            page.last_access = self.step
        if path and not self.pages[path[-1]].ends_node:
            lower = list(self._rest_of_node(path[-1]))
            self.pages[path[-1]].ends_node = True
            for prefix in lower if self._touch_lower else ():
                self.pages[prefix].last_access = self.step
        self._locked[sequence] = path

    def publish(self, sequence: Sequence, tokens: list[int]) -> None:
        path = [
            (sequence.request.namespace, tuple(tokens[:end]))
            for end in range(self._size, len(tokens) + 1, self._size)
        ]
        locked = self._locked[sequence]
        unlocked = path[len(locked) :]
        shared = [prefix for prefix in unlocked if prefix in self.pages]
        for prefix in shared:
            self.pages[prefix].hits += 1
            self.pages[prefix].locks += 1
        new = [prefix for prefix in unlocked if prefix not in self.pages]
        for prefix in new:
            self.pages[prefix] = CachedPage(self.step, self._next_serial, self.step)
        self._next_serial += bool(new)
        for last in (shared[-1:], new[-1:]):
            for prefix in last:
                self.pages[prefix].ends_node = True
        for prefix in path:
            self.pages[prefix].last_access = self.step
        self._locked[sequence] = path

    def touch(self, sequence: Sequence) -> None:
        """Refresh whole nodes up to where the match ends."""
        path = list(self._prefixes(sequence, self.match(sequence)))
        for prefix in path + (list(self._rest_of_node(path[-1])) if path else []):
            self.pages[prefix].last_access = self.step

    def release(self, sequence: Sequence) -> None:
        for prefix in self._locked.pop(sequence):
            self.pages[prefix].locks -= 1

    def take(self, count: int, owned: int) -> None:
        """Evict what `count` pages are short of; running sequences own `owned` pages."""
        short = count - (self._num_pages - len(self.pages) - owned)
        while short > 0:
            prefix = min(self._leaves(), key=self._order)
            evicted = self._node_of(prefix) if self._by_node else [prefix]
            for victim in evicted:
                del self.pages[victim]
            short -= len(evicted)

    def _order(self, prefix: Prefix) -> Any:
        page = self.pages[prefix]
        return self._rank(page), page.serial

    def _leaves(self) -> Iterator[Prefix]:
        parents = {self._parent(prefix) for prefix in self.pages}
        return (p for p in self.pages if p not in parents and not self.pages[p].locks)

    def _parent(self, prefix: Prefix) -> Prefix:
        return prefix[0], prefix[1][: -self._size]

    def _node_of(self, leaf: Prefix) -> list[Prefix]:
        """The pages of the leaf's node, from its end upwards."""
        node = [leaf]
        while (parent := self._parent(node[-1])) in self.pages and not self.pages[parent].ends_node:
            node.append(parent)
        return node

    def _rest_of_node(self, prefix: Prefix) -> Iterator[Prefix]:
        """The pages below this one that are in the same node; inside a node nothing branches."""
        while not self.pages[prefix].ends_node:
            below = [p for p in self.pages if self._parent(p) == prefix]
            if not below:
                return
            (prefix,) = below
            yield prefix

    def _prefixes(self, sequence: Sequence, num_tokens: int) -> Iterator[Prefix]:
        tokens = sequence.tokens.tolist()
        for end in range(self._size, num_tokens + 1, self._size):
            yield sequence.request.namespace, tuple(tokens[:end])
