"""Eviction by time: of the last use, or of the insertion."""

from __future__ import annotations

from testbed.core.policy import EvictionPolicy
from testbed.core.views import NodeView


class Lru(EvictionPolicy):
    """Least recently used leaf first. The default of every engine; SGLang's `lru`.

    Fails on cycles that are a little longer than the cache: everything leaves just before its use.
    """

    def priority(self, node: NodeView, now: int) -> int:
        """The step of the last admission or insertion that passed."""
        return node.last_access


class Mru(EvictionPolicy):
    """Most recently used leaf first; SGLang's `mru`.

    Keeps a part of a cycle that is longer than the cache, and the wrong part of everything else.
    """

    def priority(self, node: NodeView, now: int) -> int:
        """The step of the last use, negated."""
        return -node.last_access


class Fifo(EvictionPolicy):
    """Earliest inserted leaf first; SGLang's `fifo`, but both halves of a split keep the stamp.

    A prefix in use is protected by its children alone.
    """

    def priority(self, node: NodeView, now: int) -> int:
        """The step of the insertion."""
        return node.created


class Filo(EvictionPolicy):
    """Latest inserted leaf first; SGLang's `filo`, but both halves of a split keep the stamp.

    What came first stays for ever, used or not.
    """

    def priority(self, node: NodeView, now: int) -> int:
        """The step of the insertion, negated."""
        return -node.created
