"""Routing by what the router itself sent where: SGLang's cache-aware gateway."""

from __future__ import annotations

from typing import Literal, get_args

from testbed.core.cost import CostModel
from testbed.core.replica_view import ReplicaView
from testbed.core.views import RequestView
from testbed.policies.routing.approximate_tree import ApproximateTree
from testbed.policies.routing.load import CountingRouter

Unit = Literal["text", "tokens"]
PAGE_OF_TOKENS = 16
"""What the token tree of SGLang's gRPC router rounds matches down to."""


class CacheAware(CountingRouter):
    """SGLang's `cache_aware` (sgl-model-gateway, policies/cache_aware.rs).

    Loads are requests in flight. If max - min > balance_abs_threshold and max >
    balance_rel_threshold * min, the least loaded replica gets the request. Otherwise, if the prompt
    matches the approximate tree for more than cache_threshold of its length, the replica that used
    the matched node last gets it (the gateway takes any that did); else the least loaded one (the
    file's header says the smallest tree; the code does not). The tree learns of it in each case.

    unit: `text` compares every token, where the gateway compares characters; `tokens` whole pages
    of 16. Every eviction_interval seconds each replica's part of the tree is cut to max_tree_size
    tokens (the gateway's 2**26 characters, at 4 characters a token). Defaults are those of its
    command line. The tree never learns what the caches evicted; a difference of up to
    balance_abs_threshold requests may stay for ever; the ratio ignores how many tokens it is of.
    """

    def __init__(
        self,
        cache_threshold: float = 0.3,
        balance_abs_threshold: int = 64,
        balance_rel_threshold: float = 1.5,
        unit: Unit = "text",
        max_tree_size: int = 2**24,
        eviction_interval: float = 120.0,
    ) -> None:
        super().__init__()
        if not 0 <= cache_threshold <= 1:
            raise ValueError(f"cache_threshold={cache_threshold}: 0 to 1 is needed")
        if balance_abs_threshold < 0:
            raise ValueError(f"balance_abs_threshold={balance_abs_threshold}: at least 0 is needed")
        if not balance_rel_threshold >= 1:
            raise ValueError(f"balance_rel_threshold={balance_rel_threshold}: at least 1 is needed")
        if unit not in get_args(Unit):
            raise ValueError(f"unit={unit!r}: one of {', '.join(get_args(Unit))} is needed")
        if max_tree_size < 1:
            raise ValueError(f"max_tree_size={max_tree_size}: at least 1 is needed")
        if not eviction_interval > 0:
            raise ValueError(f"eviction_interval={eviction_interval}: seconds above 0 are needed")
        self._cache_threshold = cache_threshold
        self._abs_threshold = balance_abs_threshold
        self._rel_threshold = balance_rel_threshold
        self._page_size = PAGE_OF_TOKENS if unit == "tokens" else 1
        self._max_tree_size = max_tree_size
        self._interval = eviction_interval
        self._next_shrink = eviction_interval

    def on_start(self, replicas: tuple[ReplicaView, ...], cost: CostModel) -> None:
        """Start with an empty tree."""
        super().on_start(replicas, cost)
        self._tree = ApproximateTree(len(replicas), self._page_size)

    def pick(self, request: RequestView, replicas: tuple[ReplicaView, ...], now: float) -> int:
        """The replica of the longest match, or the least loaded."""
        if now >= self._next_shrink:
            self._tree.shrink(self._max_tree_size)
            self._next_shrink = now + self._interval
        chosen = self._matched(request)
        if chosen is None:
            chosen = self.least_loaded()
        self._tree.note(request, chosen)
        return chosen

    def _matched(self, request: RequestView) -> int | None:
        """Who should have enough of the prompt; None if nobody, or if the loads differ too much."""
        least, most = min(self.in_flight), max(self.in_flight)
        if most - least > self._abs_threshold and most > self._rel_threshold * least:
            return None
        length, replica = self._tree.longest(request)
        return replica if length > self._cache_threshold * request.num_prompt_tokens else None
