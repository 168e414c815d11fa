"""Routing by a hash of who asks, or of how the prompt begins: affinity without any index."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from hashlib import blake2b
from typing import Literal, get_args

from testbed.core.cost import CostModel
from testbed.core.policy import RoutingPolicy
from testbed.core.replica_view import ReplicaView
from testbed.core.views import RequestView
from testbed.policies.routing.load import CountingRouter

Overflow = Literal["least_loaded", "walk"]
MAX_POINTS = 100_000


class HashRing:
    """Consistent hashing: each replica owns `points` arcs of a ring, at places that depend on its
    index alone, so that a replica more or less moves few keys."""

    def __init__(self, replicas: int, points: int) -> None:
        if not 1 <= points <= MAX_POINTS:
            raise ValueError(f"points={points}: at least 1 and at most {MAX_POINTS} is needed")
        owned = sorted(
            (_place(f"{replica}/{point}".encode()), replica)
            for replica in range(replicas)
            for point in range(points)
        )
        self._places = [place for place, _ in owned]
        self._owners = [replica for _, replica in owned]

    def owner(self, key: bytes) -> int:
        """The replica whose point follows the key's place."""
        return self._owners[self._first(key)]

    def walk(self, key: bytes) -> Iterator[int]:
        """Every replica once, in the order in which the ring meets them from the key on."""
        first = self._first(key)
        return iter(dict.fromkeys(self._owners[first:] + self._owners[:first]))

    def _first(self, key: bytes) -> int:
        return bisect_right(self._places, _place(key)) % len(self._places)


class SessionAffinity(RoutingPolicy):
    """Consistent hash of the request's program (session), of its client where it has none: all
    turns of a conversation meet one cache. SGLang's gateway calls it `consistent_hashing`.

    Blind to load, and to prefixes that sessions share. points: of each replica on the ring.
    """

    reads_cache = False

    def __init__(self, points: int = 160) -> None:
        HashRing(1, points)
        self._points = points

    def on_start(self, replicas: tuple[ReplicaView, ...], cost: CostModel) -> None:
        """Lay out the ring."""
        self._ring = HashRing(len(replicas), self._points)

    def choose(self, request: RequestView, replicas: tuple[ReplicaView, ...], now: float) -> int:
        """The owner of the session."""
        key = f"client/{request.client}" if request.program is None else f"/{request.program}"
        return self._ring.owner(key.encode())


class PrefixHash(CountingRouter):
    """Consistent hash of the first `tokens` prompt tokens, with bounded loads.

    The owner gets the request unless its requests in flight exceed load_factor * (all + 1) /
    replicas. Then, overflow `least_loaded`: the least loaded replica gets it, as in `prefix_hash`
    of SGLang's gateway; `walk`: the next one on the ring that is within the bound (Mirrokni,
    Thorup, Zadimoghaddam, arXiv 1608.01350), so that the overflow of a hot prefix shares caches.

    A shared prefix shorter than `tokens` is scattered; prompts that differ later are all grouped.
    """

    def __init__(
        self,
        tokens: int = 256,
        load_factor: float = 1.25,
        overflow: Overflow = "least_loaded",
        points: int = 160,
    ) -> None:
        super().__init__()
        if tokens < 1:
            raise ValueError(f"tokens={tokens}: at least 1 is needed")
        if not load_factor >= 1:
            raise ValueError(f"load_factor={load_factor}: at least 1 is needed")
        if overflow not in get_args(Overflow):
            raise ValueError(f"overflow={overflow!r}: one of {', '.join(get_args(Overflow))}")
        HashRing(1, points)
        self._tokens = tokens
        self._load_factor = load_factor
        self._walks = overflow == "walk"
        self._points = points

    def on_start(self, replicas: tuple[ReplicaView, ...], cost: CostModel) -> None:
        """Lay out the ring."""
        super().on_start(replicas, cost)
        self._ring = HashRing(len(replicas), self._points)

    def pick(self, request: RequestView, replicas: tuple[ReplicaView, ...], now: float) -> int:
        """The owner of the prefix, or where its overflow goes."""
        key = request.namespace.encode() + b"/" + request.prompt[: self._tokens].tobytes()
        owner = self._ring.owner(key)
        bound = self._load_factor * (sum(self.in_flight) + 1) / len(replicas)
        # An idle fleet has no average to exceed.
        if self.in_flight[owner] <= bound:
            return owner
        if self._walks:
            return next(r for r in self._ring.walk(key) if self.in_flight[r] <= bound)
        return self.least_loaded()


def _place(key: bytes) -> int:
    return int.from_bytes(blake2b(key, digest_size=8).digest())
