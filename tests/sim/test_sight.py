"""What a router sees of load and caches is what is there, or was there at the last look."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.core.cost import CostModel
from testbed.core.policy import PolicyError, RoutingPolicy
from testbed.core.prefix_cache import PrefixCache
from testbed.core.replica_view import ReplicaView
from testbed.core.request import Request, Tokens
from testbed.core.views import RequestView
from testbed.policies import registry
from testbed.sim import world as world_module
from testbed.sim.replica import Replica
from testbed.sim.sight import Sight
from tests.core.building import make_request
from tests.sim.worlds import World, same, small_world, worlds

ROUTERS = registry.names("routing")
PERIODS = st.sampled_from([0.0, 0.3, 0.5, 1.0, 7.0])


class Curious(RoutingPolicy):
    """Looks at everything of everybody, and goes by it."""

    def choose(self, request: RequestView, replicas: tuple[ReplicaView, ...], now: float) -> int:
        def rank(replica: ReplicaView) -> tuple[float, ...]:
            return (
                -replica.peek(request),
                replica.kv_usage,
                replica.num_context_tokens,
                replica.num_pending_tokens,
                replica.num_waiting,
                replica.num_running,
                replica.index,
            )

        return min(replicas, key=rank).index


@settings(max_examples=150)
@given(worlds(), PERIODS)
def test_skipping_quiet_steps_shows_no_router_anything_else(world: World, period: float) -> None:
    first = world.run(routing=Curious(), staleness=period)
    assert same(first, world.run(routing=Curious(), staleness=period, skip_quiet_steps=False)) == ""


@settings(max_examples=150)
@given(worlds(), PERIODS)
def test_peeks_are_what_each_cache_would_answer_now_or_at_the_last_look(
    world: World, period: float
) -> None:
    class Audited(Sight):
        def __init__(
            self,
            router: RoutingPolicy,
            replicas: tuple[Replica, ...],
            caches: Sequence[PrefixCache],
            cost: CostModel,
            staleness: float,
        ) -> None:
            self.caches = caches
            self.seen: dict[int, list[int]] = {}
            super().__init__(router, replicas, caches, cost, staleness)

        def ask(self, request: Request) -> list[int]:
            return [cache.peek(request.prompt, request.namespace) for cache in self.caches]

        def look(self) -> None:
            super().look()
            self.seen = {request.id: self.ask(request) for request in world.requests}

        def lengths(self, request: Request) -> Sequence[int]:
            lengths = super().lengths(request)
            assert lengths == (self.seen[request.id] if period else self.ask(request))
            return lengths

    with mock.patch.object(world_module, "Sight", Audited):
        world.run(routing=Curious(), staleness=period)


@settings(max_examples=60)
@given(worlds(), st.sampled_from(ROUTERS), PERIODS)
def test_every_router_serves_everybody_and_alike_each_time(
    world: World, name: str, period: float
) -> None:
    first = world.run(routing=registry.routing(name), staleness=period)
    assert len(first.requests["request"]) == len(world.requests)
    again = registry.routing(name)
    assert same(first, world.run(routing=again, staleness=period, skip_quiet_steps=False)) == ""


class Notes(RoutingPolicy):
    """Sends everything to one replica and writes down what it sees of it."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, ...]] = []

    def choose(self, request: RequestView, replicas: tuple[ReplicaView, ...], now: float) -> int:
        only = replicas[0]
        self.seen.append((request.id, only.num_waiting, only.num_running, only.peek(request)))
        return 0


STALE_REQUESTS = [
    # Prefills in [0, 1); its pages are cached from the step's end on.
    make_request(0, [1, 2, 3, 4], 1),
    make_request(1, [5], 1, arrival=0.25),
    make_request(2, [1, 2, 3, 4, 6], 1, arrival=0.5),
    make_request(3, [1, 2, 3, 4, 7], 1, arrival=0.5),
    make_request(4, [1, 2, 3, 4, 8], 1, arrival=1.0),
    make_request(5, [1, 2, 3, 4, 9], 1, arrival=1.25),
    make_request(6, [1, 2, 3, 4, 5], 1, arrival=1.5),
]


def test_stale_views_answer_as_of_the_last_multiple_of_the_period() -> None:
    notes = Notes()
    small_world(STALE_REQUESTS).run(routing=notes, staleness=0.5)
    assert notes.seen == [
        (0, 0, 0, 0),
        (1, 0, 0, 0),  # as of 0, before request 0 arrived
        (2, 1, 1, 0),  # as of 0.5, before request 2 arrived
        (3, 1, 1, 0),  # the same sight
        (4, 3, 1, 0),  # as of 1, before the step that ends then
        (5, 3, 1, 0),
        (6, 1, 4, 4),  # as of 1.5: all but request 5 were admitted at 1
    ]


def test_live_views_answer_as_of_now() -> None:
    notes = Notes()
    small_world(STALE_REQUESTS).run(routing=notes)
    assert notes.seen == [
        (0, 0, 0, 0),
        (1, 0, 1, 0),
        (2, 1, 1, 0),
        (3, 2, 1, 0),
        (4, 3, 1, 0),
        (5, 0, 4, 4),
        (6, 1, 4, 4),
    ]


@pytest.mark.parametrize(
    ("period", "arrival", "expected"),
    [
        (0.1, 0.3, 2 * 0.1),  # 3 * 0.1 is above 0.3
        (0.5, 0.5, 0.5),
        (0.5, 0.49999999999999994, 0.0),
        (0.7, 2.0999999999999996, 3 * 0.7),  # the quotient is rounded down to below 3
        (10.0, 3.0, 0.0),
    ],
)
def test_a_look_happens_at_the_largest_multiple_not_after_the_arrival(
    period: float, arrival: float, expected: float
) -> None:
    sight = bare_sight(period)
    assert sight.next_look(arrival) == expected
    assert sight.next_look(arrival) is None


def bare_sight(period: float) -> Sight:
    sight = Sight.__new__(Sight)
    sight._period = period
    sight._newest = -1
    return sight


@pytest.mark.parametrize("period", [-1.0, float("inf"), float("nan")])
def test_an_impossible_staleness_is_refused(period: float) -> None:
    with pytest.raises(ValueError, match=f"staleness={period}: seconds from 0 on"):
        small_world(STALE_REQUESTS).run(staleness=period)


@pytest.mark.parametrize("period", [5e-324, 1e-30, 9.9e-7])
def test_a_tiny_staleness_is_refused(period: float) -> None:
    with pytest.raises(ValueError, match=f"staleness={period}: 0, or at least 1e-06 s, is needed"):
        small_world(STALE_REQUESTS).run(staleness=period)


def test_multiples_that_doubles_cannot_tell_apart_are_refused() -> None:
    # 1e-6 * 2**53 is a little more than 9.0e9 s.
    assert bare_sight(1e-6).next_look(9.0e9) == pytest.approx(9.0e9)
    with pytest.raises(ValueError, match=r"staleness=1e-06: at an arrival after 9\.1e\+09 s"):
        bare_sight(1e-6).next_look(9.1e9)


def test_a_router_that_declares_that_it_does_not_peek_may_not() -> None:
    class Blind(Notes):
        reads_cache = False

    with pytest.raises(PolicyError, match="Blind peeks, but declares reads_cache = False"):
        small_world(STALE_REQUESTS).run(routing=Blind())


class Witness(RoutingPolicy):
    """Round robin that writes down what it is told."""

    reads_cache = False

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []
        self._next = 0

    def on_start(self, replicas: tuple[ReplicaView, ...], cost: CostModel) -> None:
        self.told.append(("start", [(r.index, r.page_size) for r in replicas]))

    def choose(self, request: RequestView, replicas: tuple[ReplicaView, ...], now: float) -> int:
        self.told.append((now, "choose", request.id))
        self._next += 1
        return (self._next - 1) % len(replicas)

    def on_first_token(self, request: RequestView, replica: int, now: float) -> None:
        self.told.append((now, "first", request.id, replica))

    def on_finish(self, request: RequestView, replica: int, output_tokens: int, now: float) -> None:
        self.told.append((now, "finish", request.id, replica, output_tokens))

    def on_store(self, replica: int, run: int, namespace: str, tokens: Tokens, start: int) -> None:
        assert not tokens.flags.writeable
        self.told.append(("store", replica, run, namespace, tokens.tolist(), start))

    def on_trim(self, replica: int, run: int, end: int) -> None:
        self.told.append(("trim", replica, run, end))


HOOK_REQUESTS = [
    make_request(0, [1, 2, 3, 4], [5, 6]),
    make_request(1, [9] * 11, 1),  # never fits
    make_request(2, [7] * 9, 1, arrival=10.0, namespace="n"),
]


def test_a_router_hears_of_its_requests_and_of_the_caches() -> None:
    witness = Witness()
    small_world(HOOK_REQUESTS, num_pages=10, replicas=2).run(routing=witness)
    assert witness.told == [
        ("start", [(0, 1), (1, 1)]),
        (0.0, "choose", 0),
        (0.0, "choose", 1),
        (0.0, "finish", 1, 1, 0),
        ("store", 0, 1, "", [1, 2, 3, 4], 0),
        (1.0, "first", 0, 0),
        ("store", 0, 2, "", [1, 2, 3, 4, 5], 4),
        (1.5, "finish", 0, 0, 2),
        (10.0, "choose", 2),
        # Nine pages are needed and five are free.
        ("trim", 0, 2, 4),
        ("trim", 0, 1, 1),
        ("store", 0, 3, "n", [7] * 9, 0),
        (12.25, "first", 2, 0),
        (12.25, "finish", 2, 0, 1),
    ]


def test_stale_news_of_the_caches_comes_when_somebody_looks() -> None:
    witness = Witness()
    small_world(HOOK_REQUESTS, num_pages=10, replicas=2).run(routing=witness, staleness=4.0)
    news = [fact for fact in witness.told if fact[0] in ("store", "trim")]
    assert witness.told.index(news[0]) == witness.told.index((10.0, "choose", 2)) - 2
    assert news == [
        ("store", 0, 1, "", [1, 2, 3, 4], 0),
        ("store", 0, 2, "", [1, 2, 3, 4, 5], 4),
    ]


def test_a_first_token_is_told_once_however_often_a_sequence_is_preempted() -> None:
    requests = [make_request(n, [n], 8) for n in range(3)]
    world = small_world(requests, num_pages=12, reserve="ratio", reserve_ratio=0.1)
    witness = Witness()
    record = world.run(routing=witness)
    assert record.requests["preemptions"].sum() > 0
    firsts = [fact[2] for fact in witness.told if fact[1] == "first"]
    assert sorted(firsts) == [0, 1, 2]


def test_nobody_pays_for_an_index_that_nobody_reads() -> None:
    class Told:
        def __get__(self, cache: Any, kind: Any) -> None:
            return None

        def __set__(self, cache: Any, listener: Any) -> None:
            raise AssertionError("a listener was set")

    with mock.patch.object(PrefixCache, "kv_listener", Told()):
        small_world(STALE_REQUESTS).run(routing=registry.routing("least_loaded"))
        with pytest.raises(AssertionError, match="a listener was set"):
            small_world(STALE_REQUESTS).run(routing=Notes())


def test_loads_by_hand() -> None:
    seen: list[tuple[float, ...]] = []

    class Reader(RoutingPolicy):
        reads_cache = False

        def choose(
            self, request: RequestView, replicas: tuple[ReplicaView, ...], now: float
        ) -> int:
            only = replicas[0]
            seen.append((only.num_pending_tokens, only.num_context_tokens, round(only.kv_usage, 6)))
            return 0

    requests = [
        make_request(0, [1, 2, 3, 4], 5),  # chunks of 2: [0, 0.5), [0.5, 1.0); decodes from 1.0 on
        make_request(1, [1, 2, 3], 1, arrival=0.25),
        make_request(2, [8], 1, arrival=0.75),
        make_request(3, [8], 1, arrival=1.25),
        make_request(4, [8], 1, arrival=9.0),
    ]
    world = replace(small_world(requests, num_pages=20, chunk_size=2, max_running=1))
    world.run(routing=Reader())
    assert seen == [
        (0, 0, 0.0),
        (4, 0, 0.2),  # nothing computed yet; the whole prompt's pages are taken
        (3 + 2, 2, 0.2),  # request 1 waits; half of request 0 is left
        (3 + 1, 4, 0.25),  # the first decode step took a page
        (0, 0, 0.0),
    ]
