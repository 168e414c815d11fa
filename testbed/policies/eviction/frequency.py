"""Eviction by number of uses."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush
from math import isfinite

from testbed.core.policy import EvictionPolicy
from testbed.core.views import NodeView, SchedulerView, SequenceView


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


class _Uses:
    """What SlruDecay keeps of a node; both halves of a split go on with the same numbers."""

    __slots__ = ("count", "counted", "used", "watched")

    def __init__(self, count: int, counted: float, used: float) -> None:
        self.count = count
        self.counted = counted
        self.used = used
        self.watched = False


class SlruDecay(EvictionPolicy):
    """Slru whose protection must be earned over time and fades; SGLang 0.5.23's options of `slru`.

    A use within `debounce` seconds of the last one that counted does not count, so a burst is one
    use. A node's count is halved for each `decay` seconds that it has not been used. Still without
    a bound on the protected segment.
    """

    def __init__(self, threshold: int = 2, debounce: float = 0.1, decay: float = 60.0) -> None:
        if threshold < 1:
            raise ValueError(f"threshold={threshold}: at least 1 request is needed")
        if not (isfinite(debounce) and debounce >= 0 and isfinite(decay) and decay > 0):
            raise ValueError(
                f"debounce={debounce}, decay={decay}: seconds from 0 and above 0 are needed"
            )
        self._threshold = threshold
        self._debounce = debounce
        self._decay = decay
        self._view: SchedulerView | None = None
        # One entry for each protected node, at the time at which it fades if it is not used again.
        self._fading: list[tuple[float, int, NodeView]] = []
        self._entries = 0

    def on_start(self, view: SchedulerView) -> None:
        """Keep the clock at hand."""
        self._view = view

    def priority(self, node: NodeView, now: int) -> tuple[int, int]:
        """(1 if protected, step of the last use)."""
        uses: _Uses = node.state
        count = uses.count >> int((self._now - uses.used) / self._decay)
        return int(count >= self._threshold), node.last_access

    def reranked(self) -> Iterable[NodeView]:
        """Those whose protection may have faded since the last eviction."""
        while self._fading and self._fading[0][0] <= self._now:
            node = heappop(self._fading)[2]
            node.state.watched = False
            if node.parent is not None:
                self._watch(node)
                yield node

    def on_insert(self, node: NodeView, sequence: SequenceView) -> None:
        """One use."""
        node.state = _Uses(1, self._now, self._now)
        self._watch(node)

    def on_touch(self, node: NodeView, sequence: SequenceView) -> None:
        """Count the use, if it does not belong to a burst."""
        uses: _Uses = node.state
        uses.count >>= int((self._now - uses.used) / self._decay)
        uses.used = self._now
        if self._now - uses.counted >= self._debounce:
            uses.count += 1
            uses.counted = self._now
        self._watch(node)

    def on_split(self, upper: NodeView, lower: NodeView) -> None:
        """Both halves have been used alike."""
        uses: _Uses = lower.state
        upper.state = _Uses(uses.count, uses.counted, uses.used)
        self._watch(upper)

    @property
    def _now(self) -> float:
        assert self._view is not None
        return self._view.now

    def _watch(self, node: NodeView) -> None:
        """Note when the node's count falls below the threshold, unless that is noted or over."""
        uses: _Uses = node.state
        halvings = int((self._now - uses.used) / self._decay)
        if uses.count >> halvings < self._threshold:
            return
        while uses.count >> halvings >= self._threshold:
            halvings += 1
        if not uses.watched:
            uses.watched = True
            self._entries += 1
            fades = uses.used + halvings * self._decay
            heappush(self._fading, (fades, self._entries, node))
