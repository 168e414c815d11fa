"""Routing by load alone."""

from __future__ import annotations

from testbed.core.policy import RoutingPolicy
from testbed.core.replica_view import ReplicaView
from testbed.core.views import RequestView


class RoundRobin(RoutingPolicy):
    """Each replica in turn."""

    def __init__(self) -> None:
        self._next = 0

    def choose(self, request: RequestView, replicas: tuple[ReplicaView, ...], now: float) -> int:
        """The replica after the last one chosen."""
        chosen = self._next % len(replicas)
        self._next = chosen + 1
        return chosen


class LeastLoaded(RoutingPolicy):
    """The replica with the fewest waiting and running requests; ties go to the lowest index."""

    def choose(self, request: RequestView, replicas: tuple[ReplicaView, ...], now: float) -> int:
        """argmin over replicas of waiting + running."""
        return min(replicas, key=lambda r: (r.num_waiting + r.num_running, r.index)).index
