"""Sight: what a router sees of the fleet, live or as of the last look, and what it is told."""

from __future__ import annotations

import math
from collections.abc import Sequence

from testbed.core.cost import CostModel
from testbed.core.policy import PolicyError, RoutingPolicy
from testbed.core.prefix_cache import PrefixCache
from testbed.core.prefix_index import PrefixIndex
from testbed.core.replica_view import Load, ReplicaView
from testbed.core.request import Request, Tokens
from testbed.core.views import RequestView
from testbed.sim.replica import Replica

MIN_STALENESS = 1e-6
"""Seconds; far below any step's, and multiples of it are told apart for 285 years."""


def check_staleness(staleness: float) -> None:
    """ValueError unless a router's sight can be so many seconds old."""
    if not 0 <= staleness < math.inf:
        raise ValueError(f"staleness={staleness}: seconds from 0 on are needed")
    if 0 < staleness < MIN_STALENESS:
        raise ValueError(f"staleness={staleness}: 0, or at least {MIN_STALENESS:g} s, is needed")


class Sight:
    """Stands between a router and the replicas.

    staleness, in seconds: 0 shows everything live. T > 0 shows load and caches as they were at the
    last multiple of T, as polled metrics and batched KV events do; of that very instant, neither
    steps that end then nor requests that arrive then are seen. Only the last multiple before an
    arrival is ever seen, so only then does anybody look. If the router neither reads the caches nor
    hears of them, they report to nobody.
    """

    def __init__(
        self,
        router: RoutingPolicy,
        replicas: tuple[Replica, ...],
        caches: Sequence[PrefixCache],
        cost: CostModel,
        staleness: float,
    ) -> None:
        check_staleness(staleness)
        self._router = router
        self._replicas = replicas
        self._period = staleness
        self._newest = -1
        page_size = caches[0].page_size
        self.index = PrefixIndex(len(replicas), page_size) if router.reads_cache else None
        """What the router's peeks are answered from; None if it does not peek."""
        self._asked: Request | None = None
        self._lengths: list[int] = []
        self._feeds = self._subscribe(caches)
        self._snapshots = [_Snapshot(replica) for replica in replicas] if staleness else []
        loads: Sequence[Load] = self._snapshots if staleness else replicas
        self._views = tuple(
            ReplicaView(number, page_size, load, self) for number, load in enumerate(loads)
        )
        router.on_start(self._views, cost)

    def _subscribe(self, caches: Sequence[PrefixCache]) -> list[_Feed]:
        kind = type(self._router)
        listeners: list[PrefixIndex | RoutingPolicy] = []
        if self.index is not None:
            listeners.append(self.index)
        if kind.on_store is not RoutingPolicy.on_store or kind.on_trim is not RoutingPolicy.on_trim:
            listeners.append(self._router)
        feeds = []
        if listeners:
            for number, cache in enumerate(caches):
                cache.kv_listener = feed = _Feed(number, listeners, delays=self._period > 0)
                feeds.append(feed)
        return feeds

    def next_look(self, arrival: float) -> float | None:
        """When to look before a request that arrives then is routed; None if nothing new is seen.

        To be asked in the order of arrivals, before they happen; look() must follow at the instant
        returned.
        """
        if not self._period:
            return None
        newest = self._multiple(arrival)
        if newest <= self._newest:
            return None
        self._newest = newest
        return newest * self._period

    def look_before(self, event: float) -> float | None:
        """The last multiple up to the next event, before which nothing arrives, or else the first
        one that was not asked for; None if all is live."""
        if not self._period:
            return None
        last = self._newest + 1
        if event < math.inf:
            last = max(last, self._multiple(event))
        return last * self._period

    def _multiple(self, time: float) -> int:
        """How many periods are over by then."""
        quotient = time / self._period
        if quotient >= 2**53:
            raise ValueError(
                f"staleness={self._period}: at an arrival after {time:g} s its multiples cannot "
                "be told apart; a longer one is needed"
            )
        number = math.floor(quotient)
        # The quotient may be rounded across a multiple.
        while (number + 1) * self._period <= time:
            number += 1
        while number * self._period > time:
            number -= 1
        return number

    def look(self) -> None:
        """See every replica and every cache as they are now; O(replicas + what changed)."""
        self._asked = None
        for replica in self._replicas:
            replica.catch_up()
        for replica, snapshot in zip(self._replicas, self._snapshots, strict=True):
            snapshot.take(replica)
        for feed in self._feeds:
            feed.deliver()

    def choose(self, request: Request, now: float) -> int:
        """The router's choice; PolicyError if there is no such replica."""
        self._asked = None
        chosen = self._router.choose(RequestView(request), self._views, now)
        if type(chosen) is not int or not 0 <= chosen < len(self._replicas):
            name = type(self._router).__name__
            raise PolicyError(
                f"{name} chose replica {chosen!r}; 0 to {len(self._replicas) - 1} exist"
            )
        return chosen

    def lengths(self, request: Request) -> Sequence[int]:
        """By replica: leading prompt tokens cached, as far as the router sees them."""
        if self.index is None:
            name = type(self._router).__name__
            raise PolicyError(f"{name} peeks, but declares reads_cache = False; it must be True")
        if request is not self._asked:
            if not self._period:
                for replica in self._replicas:
                    replica.catch_up()
            self._lengths = self.index.lengths(request.prompt, request.namespace)
            self._asked = request
        return self._lengths


class _Snapshot:
    """A replica's load as of the last look."""

    __slots__ = (
        "kv_usage",
        "num_context_tokens",
        "num_pending_tokens",
        "num_running",
        "num_waiting",
    )

    def __init__(self, replica: Replica) -> None:
        self.take(replica)

    def take(self, replica: Replica) -> None:
        self.num_waiting = replica.num_waiting
        self.num_running = replica.num_running
        self.num_pending_tokens = replica.num_pending_tokens
        self.num_context_tokens = replica.num_context_tokens
        self.kv_usage = replica.kv_usage


class _Feed:
    """Passes on what one replica's cache stores and drops: at once, or when somebody looks."""

    def __init__(
        self, replica: int, listeners: list[PrefixIndex | RoutingPolicy], delays: bool
    ) -> None:
        self._replica = replica
        self._listeners = listeners
        self._delays = delays
        self._delayed: list[tuple[int, str, Tokens | None, int]] = []

    def on_store(self, run: int, namespace: str, tokens: Tokens, start: int) -> None:
        tokens = tokens.view()
        tokens.flags.writeable = False
        self._pass_on(run, namespace, tokens, start)

    def on_trim(self, run: int, end: int) -> None:
        self._pass_on(run, "", None, end)

    def _pass_on(self, run: int, namespace: str, tokens: Tokens | None, depth: int) -> None:
        if self._delays:
            self._delayed.append((run, namespace, tokens, depth))
            return
        for listener in self._listeners:
            if tokens is None:
                listener.on_trim(self._replica, run, depth)
            else:
                listener.on_store(self._replica, run, namespace, tokens, depth)

    def deliver(self) -> None:
        """Pass on what was held back."""
        delayed, self._delayed = self._delayed, []
        self._delays = False
        for event in delayed:
            self._pass_on(*event)
        self._delays = True
