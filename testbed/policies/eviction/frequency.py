"""Eviction by number of uses."""

from __future__ import annotations

from testbed.core.policy import EvictionPolicy
from testbed.core.views import NodeView


class Lfu(EvictionPolicy):
    """Leaf with the fewest requests since its insertion first, then least recently used.

    SGLang's `lfu`. A request counts once for a node, however many chunks its prefill took.
    """

    def priority(self, node: NodeView, now: int) -> tuple[int, int]:
        """(requests that passed since the insertion, step of the last use)."""
        return node.hits, node.last_access
