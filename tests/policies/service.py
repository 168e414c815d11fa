"""The largest gap of service between two clients while both are backlogged, counted exactly."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import Any

from testbed.core.policy import SchedulingPolicy
from testbed.core.views import SchedulerView, SequenceView
from tests.policies.auditing import Audited

Charge = Callable[[SequenceView, int, int], int]
"""Tokens charged at a first admission, of (sequence, cached, extend)."""


class ServiceGaps(Audited):
    """Sums up service per weight at each admission and token; looks at the gaps after each."""

    def __init__(
        self, policy: SchedulingPolicy, charge: Charge, prices: tuple[float, float]
    ) -> None:
        super().__init__(policy, lambda view, left: left[0])
        self.charge = charge
        self.prices = prices
        self.service: dict[str, float] = {}
        self.queued: dict[str, int] = {}
        self.extremes: dict[tuple[str, str], tuple[float, float]] = {}
        self.largest = 0.0

    def candidates(self, view: SchedulerView) -> Any:
        return self.policy.candidates(view)

    def on_arrival(self, sequence: SequenceView) -> Any:
        self.service.setdefault(sequence.client, 0.0)
        self.enqueue(sequence.client, 1)
        return super().on_arrival(sequence)

    def on_preempt(self, sequence: SequenceView) -> None:
        self.enqueue(sequence.client, 1)
        super().on_preempt(sequence)

    def on_admit(self, sequence: SequenceView, cached: int, extend: int) -> None:
        if not sequence.num_preemptions:
            tokens = self.charge(sequence, cached, extend)
            self.serve(sequence, self.prices[0] * tokens)
        self.enqueue(sequence.client, -1)
        super().on_admit(sequence, cached, extend)

    def on_tokens(self, sequence: SequenceView, count: int) -> None:
        self.serve(sequence, self.prices[1] * count)
        super().on_tokens(sequence, count)

    def enqueue(self, client: str, count: int) -> None:
        self.queued[client] = self.queued.get(client, 0) + count
        self.observe()

    def serve(self, sequence: SequenceView, amount: float) -> None:
        self.service[sequence.client] += amount / sequence.weight
        self.observe()

    def observe(self) -> None:
        for pair in combinations(sorted(self.service), 2):
            if not all(self.queued[client] for client in pair):
                self.extremes.pop(pair, None)
                continue
            gap = self.service[pair[0]] - self.service[pair[1]]
            least, most = self.extremes.get(pair, (gap, gap))
            self.extremes[pair] = (min(least, gap), max(most, gap))
            self.largest = max(self.largest, max(most, gap) - min(least, gap))
