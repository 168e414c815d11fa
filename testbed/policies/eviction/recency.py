"""Eviction by time: of the last use, or of the insertion."""

from __future__ import annotations

from testbed.core.policy import EvictionPolicy
from testbed.core.views import NodeView


class Lru(EvictionPolicy):
    """Least recently used leaf first. The default of every engine; SGLang's `lru`."""

    def priority(self, node: NodeView, now: int) -> int:
        """The step of the last admission or insertion that passed."""
        return node.last_access


class Fifo(EvictionPolicy):
    """Earliest inserted leaf first; SGLang's `fifo`, but both halves of a split keep the stamp."""

    def priority(self, node: NodeView, now: int) -> int:
        """The step of the insertion."""
        return node.created
