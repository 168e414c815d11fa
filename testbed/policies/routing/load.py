"""Routing by load alone."""

from __future__ import annotations

from abc import abstractmethod
from random import Random

from testbed.core.cost import CostModel
from testbed.core.policy import RoutingPolicy
from testbed.core.replica_view import ReplicaView
from testbed.core.views import RequestView
from testbed.policies.seeds import check_seed


class RoundRobin(RoutingPolicy):
    """Each replica in turn. Every replica meets every prefix, so R of them miss it R times."""

    reads_cache = False

    def __init__(self) -> None:
        self._next = 0

    def choose(self, request: RequestView, replicas: tuple[ReplicaView, ...], now: float) -> int:
        """The replica after the last one chosen."""
        chosen = self._next % len(replicas)
        self._next = chosen + 1
        return chosen


class RandomChoice(RoutingPolicy):
    """Any replica, uniformly; SGLang's gateway calls it `random`. The baseline without state."""

    reads_cache = False

    def __init__(self, seed: int = 0) -> None:
        check_seed(seed)
        self._random = Random(seed)

    def choose(self, request: RequestView, replicas: tuple[ReplicaView, ...], now: float) -> int:
        """A uniform draw."""
        return self._random.randrange(len(replicas))


class LeastLoaded(RoutingPolicy):
    """The replica with the fewest waiting and running requests; ties go to the lowest index.

    With stale views everything that arrives between two looks herds to the same replica.
    """

    reads_cache = False

    def choose(self, request: RequestView, replicas: tuple[ReplicaView, ...], now: float) -> int:
        """argmin over replicas of waiting + running."""
        return min(replicas, key=lambda r: (r.num_waiting + r.num_running, r.index)).index


class PowerOfTwo(RoutingPolicy):
    """The less loaded of two replicas drawn at random (Mitzenmacher, IEEE TPDS 12(10), 2001);
    SGLang's gateway calls it `power_of_two`. Load is waiting + running; the first drawn wins ties.

    Stale views hurt it less than LeastLoaded, as only a few requests look at the same replica.
    """

    reads_cache = False

    def __init__(self, seed: int = 0) -> None:
        check_seed(seed)
        self._random = Random(seed)

    def choose(self, request: RequestView, replicas: tuple[ReplicaView, ...], now: float) -> int:
        """The lighter of two distinct replicas; the only one where there is one."""
        if len(replicas) == 1:
            return 0
        first, second = (replicas[i] for i in self._random.sample(range(len(replicas)), 2))
        lighter = second.num_waiting + second.num_running < first.num_waiting + first.num_running
        return second.index if lighter else first.index


class CountingRouter(RoutingPolicy):
    """A router that counts what it has dispatched and not seen finish, as gateways do: its own
    counts are never stale."""

    reads_cache = False

    def __init__(self) -> None:
        self.in_flight: list[int] = []
        """Requests by replica."""

    def on_start(self, replicas: tuple[ReplicaView, ...], cost: CostModel) -> None:
        """Nothing is in flight."""
        self.in_flight = [0] * len(replicas)

    def choose(self, request: RequestView, replicas: tuple[ReplicaView, ...], now: float) -> int:
        """What pick() says, counted."""
        chosen = self.pick(request, replicas, now)
        self.in_flight[chosen] += 1
        return chosen

    @abstractmethod
    def pick(self, request: RequestView, replicas: tuple[ReplicaView, ...], now: float) -> int:
        """The index of the replica that gets the request."""

    def on_finish(self, request: RequestView, replica: int, output_tokens: int, now: float) -> None:
        """One less."""
        self.in_flight[replica] -= 1

    def least_loaded(self) -> int:
        """The replica with the fewest requests in flight; ties go to the lowest index."""
        return self.in_flight.index(min(self.in_flight))
