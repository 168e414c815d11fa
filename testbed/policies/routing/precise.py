"""Routing by what the caches say they hold, weighed against load: llm-d and Dynamo."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, isfinite
from random import Random

from testbed.core.cost import CostModel
from testbed.core.policy import RoutingPolicy
from testbed.core.replica_view import ReplicaView
from testbed.core.views import RequestView
from testbed.policies.seeds import check_seed


class PrecisePrefix(RoutingPolicy):
    """The largest weighted sum of three scores in [0, 1], as in llm-d's scheduler:

    prefix: matched pages / pages of the prompt (`precise-prefix-cache-scorer`);
    memory: 1 - KV usage (`kv-cache-utilization-scorer`);
    queue: (longest queue - queue) / (longest - shortest), 1 if all are equal (`queue-scorer`).

    Weights 2, 1, 1 as in llm-d's sample configuration; ties are drawn (`max-score-picker`). The
    maximum of stale scores herds; what llm-d adds against it (speculative index entries, a filter
    with exploration) is not here.
    """

    def __init__(
        self,
        prefix_weight: float = 2.0,
        memory_weight: float = 1.0,
        queue_weight: float = 1.0,
        seed: int = 0,
    ) -> None:
        for name, weight in (
            ("prefix_weight", prefix_weight),
            ("memory_weight", memory_weight),
            ("queue_weight", queue_weight),
        ):
            if not (isfinite(weight) and weight >= 0):
                raise ValueError(f"{name}={weight}: a finite number of at least 0 is needed")
        self._prefix_weight = prefix_weight
        self._memory_weight = memory_weight
        check_seed(seed)
        self._queue_weight = queue_weight
        self._random = Random(seed)

    def choose(self, request: RequestView, replicas: tuple[ReplicaView, ...], now: float) -> int:
        """The replica of the largest score."""
        size = replicas[0].page_size
        prefix_weight = self._prefix_weight / max(1, request.num_prompt_tokens // size) / size
        queues = [replica.num_waiting for replica in replicas]
        longest, spread = max(queues), max(queues) - min(queues)
        scores = []
        for replica, queue in zip(replicas, queues, strict=True):
            score = prefix_weight * replica.peek(request)
            if self._memory_weight:
                score += self._memory_weight * (1 - replica.kv_usage)
            score += self._queue_weight * ((longest - queue) / spread if spread else 1.0)
            scores.append(score)
        return _draw_among_least([-score for score in scores], self._random)


class Dynamo(RoutingPolicy):
    """NVIDIA Dynamo's KV router: the least of

    overlap_weight * (prefill tokens under way + uncached prompt tokens) / page + decode blocks,

    where a replica's prefill tokens under way are the uncached tokens of requests sent there that
    have no first token yet, and its decode blocks the pages of the prompts of all requests in
    flight there, this one included. Both are the router's own counts; only the overlap comes from
    the caches. temperature 0 takes the least cost and draws among ties; above 0 the costs are
    divided by their range and drawn from softmax(-cost / temperature).

    Source: docs.nvidia.com/dynamo, Routing Concepts, and lib/kv-router/src/scheduling. Ours counts
    a page twice where two requests share it, and no output blocks (there an option).
    """

    def __init__(
        self, overlap_weight: float = 1.0, temperature: float = 0.0, seed: int = 0
    ) -> None:
        for name, value in (("overlap_weight", overlap_weight), ("temperature", temperature)):
            if not (isfinite(value) and value >= 0):
                raise ValueError(f"{name}={value}: a finite number of at least 0 is needed")
        self._overlap_weight = overlap_weight
        check_seed(seed)
        self._temperature = temperature
        self._random = Random(seed)
        # By request id, until its first token: the uncached tokens that were charged.
        self._uncached: dict[int, int] = {}

    def on_start(self, replicas: tuple[ReplicaView, ...], cost: CostModel) -> None:
        """Nothing is under way."""
        self._page_size = replicas[0].page_size
        self._prefill_tokens = [0] * len(replicas)
        self._decode_blocks = [0] * len(replicas)

    def choose(self, request: RequestView, replicas: tuple[ReplicaView, ...], now: float) -> int:
        """The replica of the least cost, or a draw."""
        length = request.num_prompt_tokens
        uncached = [length - replica.peek(request) for replica in replicas]
        weight = self._overlap_weight / self._page_size
        costs = [
            weight * (under_way + new) + blocks
            for under_way, new, blocks in zip(
                self._prefill_tokens, uncached, self._decode_blocks, strict=True
            )
        ]
        chosen = self._draw(costs)
        self._uncached[request.id] = uncached[chosen]
        self._prefill_tokens[chosen] += uncached[chosen]
        self._decode_blocks[chosen] += self._blocks(request)
        return chosen

    def on_first_token(self, request: RequestView, replica: int, now: float) -> None:
        """Its prefill is over."""
        self._prefill_tokens[replica] -= self._uncached.pop(request.id)

    def on_finish(self, request: RequestView, replica: int, output_tokens: int, now: float) -> None:
        """Its blocks are given back."""
        # A refused request never had a first token.
        self._prefill_tokens[replica] -= self._uncached.pop(request.id, 0)
        self._decode_blocks[replica] -= self._blocks(request)

    def _blocks(self, request: RequestView) -> int:
        return -(-request.num_prompt_tokens // self._page_size)

    def _draw(self, costs: Sequence[float]) -> int:
        least, most = min(costs), max(costs)
        if not self._temperature or least == most:
            return _draw_among_least(costs, self._random)
        scale = (most - least) * self._temperature
        weights = [exp((least - cost) / scale) for cost in costs]
        return self._random.choices(range(len(costs)), weights)[0]


def _draw_among_least(costs: Sequence[float], random: Random) -> int:
    least = min(costs)
    ties = [index for index, cost in enumerate(costs) if cost == least]
    return ties[0] if len(ties) == 1 else random.choice(ties)
