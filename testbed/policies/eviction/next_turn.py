"""Eviction by what a conversation's next turn will need, or how soon it is to come."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from math import exp

from testbed.core.policy import EvictionPolicy
from testbed.core.views import CacheView, NodeView, SchedulerView, SequenceView


class TailOptimizedLru(EvictionPolicy):
    """What the next turn can spare first, then least recently used.

    A conversation of L tokens whose next prompt adds `next_prompt` tokens computes at most
    `threshold` tokens as long as L + next_prompt - threshold of its tokens stay; pages beyond these
    can be spared. Tail-Optimized LRU (arXiv 2510.15152), SGLang 0.5.23's `tlru` with its defaults
    (0 and 0), under which nothing can be spared: set them to the tokens that a prefill may take in
    the TTFT target, and to a typical turn. L is the greatest depth at which a request that passed
    ended, and does not shrink with evictions. Page by page exactly; SGLang spares whole nodes.

    It trades hits for the tail: tokens of short conversations leave first, used or not.
    """

    def __init__(self, threshold: int = 0, next_prompt: int = 0) -> None:
        for name, value in (("threshold", threshold), ("next_prompt", next_prompt)):
            if value < 0:
                raise ValueError(f"{name}={value}: tokens from 0 on are needed")
        self._threshold = threshold
        self._next_prompt = next_prompt
        self._page_size = 1

    def on_start(self, view: SchedulerView) -> None:
        """Note the page size."""
        self._page_size = view.cache.page_size

    def priority(self, node: NodeView, now: int) -> tuple[int, int]:
        """(0 if the last page can be spared, step of the last use)."""
        return int(node.end <= self._needed(node)), node.last_access

    def tail_pages(self, node: NodeView) -> int | None:
        """What lies beyond the needed depth can be spared."""
        beyond = min(node.end - self._needed(node), node.num_tokens)
        return beyond // self._page_size if beyond > 0 else None

    def on_insert(self, node: NodeView, sequence: SequenceView) -> None:
        """State: L, in tokens."""
        node.state = node.end

    def on_release(self, node: NodeView, sequence: SequenceView) -> None:
        """The request ended here."""
        passed: NodeView | None = node
        while passed is not None and passed.parent is not None:
            passed.state = max(passed.state, node.end)
            passed = passed.parent

    def on_split(self, upper: NodeView, lower: NodeView) -> None:
        """Keep L."""
        upper.state = lower.state

    def _needed(self, node: NodeView) -> int:
        tokens: int = max(0, node.state + self._next_prompt - self._threshold)
        return -(-tokens // self._page_size) * self._page_size


class _LastUse:
    """Which category used a node last, and when (seconds)."""

    __slots__ = ("category", "time")

    def __init__(self, category: _Category, time: float) -> None:
        self.category = category
        self.time = time


class _Category:
    """How often its nodes are used again, and how soon; and its leaves, longest unused first."""

    __slots__ = ("_heap", "_next_entry", "mean_interval", "reuses", "uses")

    def __init__(self, mean_interval: float) -> None:
        self.mean_interval = mean_interval
        self.reuses = 0
        self.uses = 0
        self._heap: list[tuple[float, int, int, NodeView]] = []
        self._next_entry = 0

    def push(self, node: NodeView) -> None:
        """The node may be an unlocked leaf now."""
        heappush(self._heap, (node.state.time, -node.end, self._next_entry, node))
        self._next_entry += 1

    def first(self) -> NodeView | None:
        """The leaf that was used longest ago, the deepest of several."""
        while self._heap:
            time, _, _, node = self._heap[0]
            last: _LastUse | None = node.state
            current = last is not None and last.category is self and last.time == time
            if current and not node.num_children and not node.locks:
                return node
            heappop(self._heap)
        return None

    def probability(self, idle: float, life: float) -> float:
        """That a node is used within `life` seconds, having been idle for so many."""
        # Steps that take no time would make the mean 0.
        mean = max(self.mean_interval, 1e-9)
        window = exp(-idle / mean) - exp(-(idle + life) / mean)
        return (self.reuses + 1) / (self.uses + 1) * window


class ReuseProbability(EvictionPolicy):
    """Least likely to be used again in the time it still has, first; then the deepest.

    KVCache Cache in the Wild (arXiv 2506.02634): requests of a category (client, turn) come back
    after exponentially distributed times, so a node idle for t seconds is used within the next
    `life` seconds with probability p * (exp(-t / mean) - exp(-(t + life) / mean)). Our reading:
    the category is the last user's client and turn (turns from `last_turn` on are one); p is
    (reuses + 1) / (uses + 1); mean and life (seconds from the last use to the eviction) are
    exponentially weighted, a new value counting `rate`, and start at `prior_seconds`.

    Without clients and turns there is one category, and it is LRU by the clock, the deepest leaf
    first. It learns slowly. O(categories + log n) a victim, since in a category the order is fixed.
    """

    def __init__(self, prior_seconds: float = 60.0, rate: float = 0.05, last_turn: int = 8) -> None:
        if prior_seconds <= 0:
            raise ValueError(f"prior_seconds={prior_seconds}: more than 0 is needed")
        if not 0 < rate <= 1:
            raise ValueError(f"rate={rate}: more than 0 and at most 1 is needed")
        if last_turn < 0:
            raise ValueError(f"last_turn={last_turn}: at least 0 is needed")
        self._prior = self._life = prior_seconds
        self._rate = rate
        self._last_turn = last_turn
        self._categories: dict[tuple[str, int], _Category] = {}
        self._view: SchedulerView

    def on_start(self, view: SchedulerView) -> None:
        """Keep the clock at hand."""
        self._view = view

    def priority(self, node: NodeView, now: int) -> int:
        """Unused: victims are named."""
        return node.last_access

    def victims(self, view: CacheView, need: int) -> Iterator[NodeView]:
        """The least likely of the categories' first leaves."""
        while leaves := [leaf for one in self._categories.values() if (leaf := one.first())]:
            yield min(leaves, key=self._rank)

    def on_insert(self, node: NodeView, sequence: SequenceView) -> None:
        """The first use."""
        self._use(node, sequence)

    def on_touch(self, node: NodeView, sequence: SequenceView) -> None:
        """A reuse, to the credit of the category that used it before."""
        last: _LastUse = node.state
        category = last.category
        category.reuses += 1
        interval = self._view.now - last.time
        category.mean_interval += self._rate * (interval - category.mean_interval)
        self._use(node, sequence)

    def on_release(self, node: NodeView, sequence: SequenceView) -> None:
        """The end of the path may be a leaf."""
        if node.parent is not None:
            node.state.category.push(node)

    def on_split(self, upper: NodeView, lower: NodeView) -> None:
        """Both halves were used then."""
        upper.state = _LastUse(lower.state.category, lower.state.time)

    def on_evict(self, node: NodeView) -> None:
        """Learn how long unused nodes stay; the parent may be a leaf now."""
        self._life += self._rate * (self._view.now - node.state.time - self._life)
        node.state = None
        parent = node.parent
        if parent is not None and parent.parent is not None:
            parent.state.category.push(parent)

    def _use(self, node: NodeView, sequence: SequenceView) -> None:
        name = sequence.client, min(sequence.turn, self._last_turn)
        category = self._categories.get(name)
        if category is None:
            category = self._categories[name] = _Category(self._prior)
        category.uses += 1
        node.state = _LastUse(category, self._view.now)

    def _rank(self, leaf: NodeView) -> tuple[float, int, int]:
        last: _LastUse = leaf.state
        probability = last.category.probability(self._view.now - last.time, self._life)
        return probability, -leaf.end, leaf.serial
