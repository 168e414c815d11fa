"""PrefixIndex: which replica has cached how much of a prompt, for all replicas in one walk.

One tree over what all the caches hold, fed with what each of them stores and drops. A lookup costs
the nodes on the prompt's path and a comparison of its tokens, whatever the number of replicas: each
node knows its holders as the bits of one integer.
"""

from __future__ import annotations

from collections.abc import Iterator

from testbed.core.request import Tokens
from testbed.core.token_tree import TokenTree, TreeNode


class Holders:
    """Who has a node's edge: a bit for each replica that has its first page, and how far those
    have it that do not have all of it."""

    __slots__ = ("mask", "short")

    def __init__(self, mask: int, short: dict[int, int]) -> None:
        self.mask = mask
        self.short = short


class PrefixIndex(TokenTree):
    """The union of the replicas' caches, kept current by `on_store` and `on_trim`."""

    def __init__(self, replicas: int, page_size: int) -> None:
        super().__init__(page_size)
        self._replicas = replicas
        # By replica: where each run ends now, at or below the node given, and where it began.
        self._runs: list[dict[int, tuple[TreeNode, int]]] = [{} for _ in range(replicas)]

    def new_state(self) -> Holders:
        """Nobody has it."""
        return Holders(0, {})

    def divide_state(self, lower: Holders, depth: int) -> Holders:
        """Whoever ends in the upper half has nothing of the lower."""
        upper = Holders(lower.mask, {})
        if lower.short:
            for replica, held in list(lower.short.items()):
                if held <= depth:
                    del lower.short[replica]
                    lower.mask &= ~(1 << replica)
                    if held < depth:
                        upper.short[replica] = held
        return upper

    def _split(self, node: TreeNode, depth: int) -> TreeNode:
        upper = super()._split(node, depth)
        if not node.state.mask:
            # Beyond the cut there were only tokens that everybody had dropped.
            self.remove(node)
        return upper

    def lengths(self, tokens: Tokens, namespace: str = "") -> list[int]:
        """By replica: leading tokens that it has cached, in whole pages."""
        lengths = [0] * self._replicas
        alive = (1 << self._replicas) - 1
        depth = 0
        for node, end in self.match(tokens, namespace):
            holders: Holders = node.state
            if depth:
                for replica in _bits(alive & ~holders.mask):
                    lengths[replica] = depth
            alive &= holders.mask
            for replica, held in holders.short.items():
                if held < end and alive >> replica & 1:
                    lengths[replica] = held
                    alive ^= 1 << replica
            depth = end
            if not alive:
                return lengths
        for replica in _bits(alive):
            lengths[replica] = depth
        return lengths

    def on_store(self, replica: int, run: int, namespace: str, tokens: Tokens, start: int) -> None:
        """The replica has all of `tokens` now; what lies beyond `start` is its new run."""
        bit = 1 << replica
        path = self.insert(tokens, namespace)
        for node in reversed(path):
            if node.end <= start:
                break
            node.state.mask |= bit
            node.state.short.pop(replica, None)
        self._runs[replica][run] = (path[-1], start)

    def on_trim(self, replica: int, run: int, end: int) -> None:
        """The replica's run ends at depth `end` now; O(nodes it lost)."""
        runs = self._runs[replica]
        node, start = runs[run]
        keep = ~(1 << replica)
        while node.start >= end and node.parent is not None:
            holders: Holders = node.state
            if holders.mask:
                holders.mask &= keep
                holders.short.pop(replica, None)
                if not holders.mask:
                    self.remove(node)
            node = node.parent
        if end < node.end:
            node.state.short[replica] = end
        if end > start:
            runs[run] = (node, start)
        else:
            del runs[run]


def _bits(mask: int) -> Iterator[int]:
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest
