"""Eviction by worth: how often a prefix is used and what it costs to compute it again."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from testbed.core.cost import CostModel
from testbed.core.policy import EvictionPolicy
from testbed.core.views import CacheView, NodeView, SchedulerView, SequenceView


class Gdsf(EvictionPolicy):
    """Greedy-dual size frequency: smallest clock + uses / tokens first.

    The clock is the rank of what left last, so that old popularity ages; a node takes the clock of
    its last use. libCacheSim's GDSF (rank of the last victim + uses * 1e6 / size) and Cherkasova
    (1998) with equal costs. On a tree it hits many short prefixes rather than many tokens. Our
    reading: halves of a split keep the rank until their next use, and so does a leaf that loses
    only its tail; the clock moves when a node is gone.
    """

    def __init__(self) -> None:
        self._clock = 0.0

    def priority(self, node: NodeView, now: int) -> float:
        """clock + uses / tokens, as of the last use."""
        rank: float = node.state
        return rank

    def on_insert(self, node: NodeView, sequence: SequenceView) -> None:
        """Rank it anew."""
        node.state = self._clock + node.hits / node.num_tokens

    def on_touch(self, node: NodeView, sequence: SequenceView) -> None:
        """Rank it anew."""
        node.state = self._clock + node.hits / node.num_tokens

    def on_split(self, upper: NodeView, lower: NodeView) -> None:
        """Keep the rank."""
        upper.state = lower.state

    def on_evict(self, node: NodeView) -> None:
        """Advance the clock."""
        self._clock = max(self._clock, node.state)


class _Worth:
    """A node's price per token, uses and rank."""

    __slots__ = ("per_token", "rank", "uses")

    def __init__(self, per_token: float, uses: int, rank: float) -> None:
        self.per_token = per_token
        self.uses = uses
        self.rank = rank


class Pgdsf(EvictionPolicy):
    """Prefix-aware greedy-dual size frequency: smallest clock + uses * seconds per token first.

    RAGCache (arXiv 2404.12457): cost / size of a node is the mean, over the times that it was
    computed, of the prefill's seconds over the tokens computed, given what was cached before it.
    Here a node dies with its eviction, so the mean has one term: the prefill of its edge after all
    above it, by the cost model (seconds). The halves of a split share its price, uses and rank.
    The clock is the rank of the node that left last; a leaf that loses only its tail keeps its rank
    and does not move it. Per token, deep nodes cost more, so it keeps these.
    """

    def __init__(self) -> None:
        self._clock = 0.0
        self._cost = CostModel()

    def on_start(self, view: SchedulerView) -> None:
        """Keep the price list at hand."""
        self._cost = view.cost

    def priority(self, node: NodeView, now: int) -> float:
        """clock + uses * seconds per token, as of the last use."""
        worth: _Worth = node.state
        return worth.rank

    def on_insert(self, node: NodeView, sequence: SequenceView) -> None:
        """Price it."""
        computed = node.num_tokens
        per_token = self._cost.prefill_seconds(node.end - computed, computed) / computed
        node.state = _Worth(per_token, 1, self._clock + per_token)

    def on_touch(self, node: NodeView, sequence: SequenceView) -> None:
        """Count the use and take the clock."""
        worth: _Worth = node.state
        worth.uses += 1
        worth.rank = self._clock + worth.uses * worth.per_token

    def on_split(self, upper: NodeView, lower: NodeView) -> None:
        """Share price, uses and rank."""
        worth: _Worth = lower.state
        upper.state = _Worth(worth.per_token, worth.uses, worth.rank)

    def on_evict(self, node: NodeView) -> None:
        """Advance the clock."""
        self._clock = max(self._clock, node.state.rank)


class Marconi(EvictionPolicy):
    """Smallest recency + alpha * FLOPs saved per token first, each scaled to 0..1.

    Marconi (arXiv 2411.19379), without what it has for recurrent states: in a model of attention
    alone every node costs the same memory per token, and only leaves can go. FLOPs are those of the
    edge after all above it, by the cost model. Our reading: both terms are scaled between the
    smallest and the largest of the leaves that may go at the start of an eviction, a parent that
    becomes a leaf meanwhile by the same scale; alpha is fixed (the paper tunes it by replaying the
    recent past, from 0). alpha=0 is LRU but for ties. Large alphas keep long dead conversations.

    The scale needs every leaf: O(nodes) an eviction.
    """

    def __init__(self, alpha: float = 1.0) -> None:
        if alpha < 0:
            raise ValueError(f"alpha={alpha}: at least 0 is needed")
        self._alpha = alpha
        self._cost = CostModel()

    def on_start(self, view: SchedulerView) -> None:
        """Keep the price list at hand."""
        self._cost = view.cost

    def priority(self, node: NodeView, now: int) -> int:
        """Unused: victims are named."""
        return node.last_access

    def victims(self, view: CacheView, need: int) -> Iterator[NodeView]:
        """The leaves by score."""
        leaves = list(view.evictable_leaves())
        recency = _Scale([float(leaf.last_access) for leaf in leaves])
        efficiency = _Scale([self._flops_per_token(leaf) for leaf in leaves])

        def entry(leaf: NodeView) -> tuple[float, int, int, NodeView]:
            saved = efficiency(self._flops_per_token(leaf))
            score = recency(leaf.last_access) + self._alpha * saved
            # Halves of a split share their serial; the depth tells them apart.
            return score, leaf.serial, leaf.end, leaf

        heap = [entry(leaf) for leaf in leaves]
        heapify(heap)
        while heap:
            leaf = heappop(heap)[-1]
            parent = leaf.parent
            yield leaf
            if parent is None or parent.parent is None or parent.num_children or parent.locks:
                continue
            heappush(heap, entry(parent))

    def _flops_per_token(self, node: NodeView) -> float:
        computed = node.num_tokens
        return self._cost.prefill_flops(node.end - computed, computed) / computed


class _Scale:
    """Maps the smallest value to 0 and the largest to 1; everything to 0 if they are equal."""

    def __init__(self, values: list[float]) -> None:
        self._low = min(values, default=0.0)
        self._range = max(values, default=0.0) - self._low

    def __call__(self, value: float) -> float:
        return (value - self._low) / self._range if self._range else 0.0
