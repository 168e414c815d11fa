"""Eviction by number of uses."""

from __future__ import annotations

from testbed.core.policy import EvictionPolicy
from testbed.core.views import NodeView


class Lfu(EvictionPolicy):
    """Leaf with the fewest requests since its insertion first, then least recently used.

    SGLang's `lfu`. A request counts once for a node, however many chunks its prefill took. What was
    popular once stays: counts neither age nor survive an eviction.
    """

    def priority(self, node: NodeView, now: int) -> tuple[int, int]:
        """(requests that passed since the insertion, step of the last use)."""
        return node.hits, node.last_access


class Slru(EvictionPolicy):
    """Leaves with fewer than `threshold` requests first, then the protected ones; LRU in each.

    SGLang 0.5.23's `slru`. Withstands scans. Its protected segment has no bound, other than in the
    segmented LRU of Karedla et al. (1994): nothing is ever demoted, so what was used twice outlives
    what is used now.
    """

    def __init__(self, threshold: int = 2) -> None:
        if threshold < 1:
            raise ValueError(f"threshold={threshold}: at least 1 request is needed")
        self._threshold = threshold

    def priority(self, node: NodeView, now: int) -> tuple[int, int]:
        """(1 if protected, step of the last use)."""
        return int(node.hits >= self._threshold), node.last_access
