"""What holds for every eviction policy: bounds, monotone caches, progress, and equal replays."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.core.request import Request
from testbed.core.views import RequestView
from testbed.metrics.bounds import clairvoyant_bound, sharing_bound
from testbed.metrics.prompt_paths import prompt_paths
from testbed.policies import EvictionPolicy, registry
from tests.cases.serial import SERIAL, build_scheduler, serve_in_order
from tests.core.building import make_request
from tests.sim.worlds import World, same, worlds

PARAMETERS: MappingProxyType[str, dict[str, Any]] = MappingProxyType(
    {
        "slru": {"threshold": 3},
        "marconi": {"alpha": 2.0},
        "tail_lru": {"threshold": 3, "next_prompt": 1},
        "reuse_probability": {"prior_seconds": 2.0},
        "pin": {"max_share": 1.0},
        "ttl": {"seconds": 4.0, "max_share": 0.8},
        "s3_fifo": {"small_share": 0.4, "threshold": 1},
        "look_ahead": {"window": 3},
    }
)
"""Such that small cases meet every branch."""
NAMES = list(registry.BUILT_IN["eviction"])


def build(name: str, **parameters: Any) -> EvictionPolicy:
    return registry.eviction(name, **{**PARAMETERS.get(name, {}), **parameters})


@st.composite
def prompts(draw: st.DrawFn) -> list[Request]:
    """Prompts that go on from known ones, with pins, priorities and clients."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    known: list[list[int]] = [[]]
    requests = []
    for number in range(draw(st.integers(1, 16))):
        start = known[rng.integers(len(known))]
        prompt = start[: rng.integers(len(start) + 1)]
        prompt = [*prompt, *rng.integers(0, 2, size=rng.integers(1, 4)).tolist()][:10]
        known.append(prompt)
        requests.append(
            make_request(
                number,
                prompt,
                client="ab"[rng.integers(2)],
                turn=int(rng.integers(3)),
                priority=int(rng.integers(3)),
                pin=int(rng.integers(0, 12)) * int(rng.integers(2)),
                retain_for=float(rng.integers(0, 3)),
                namespace="" if rng.random() < 0.9 else "n",
            )
        )
    return requests


def hits(
    requests: list[Request], eviction: EvictionPolicy, capacity: int, page_size: int = 1
) -> list[int]:
    """Hit tokens of each request, served one at a time; a cached prompt computes nothing."""
    if eviction.oracle:
        eviction.on_future([RequestView(request) for request in requests])
    scheduler = build_scheduler(capacity, eviction=eviction, page_size=page_size)
    found = serve_in_order(scheduler, requests).hits
    scheduler.cache.check([])
    return found


@given(prompts(), st.sampled_from([1, 2, 3]), st.integers(0, 12))
@settings(max_examples=40)
def test_no_policy_beats_belady_nor_belady_the_sharing_bound(
    requests: list[Request], page_size: int, more: int
) -> None:
    need = max(-(-len(request.prompt) // page_size) for request in requests)
    capacity = need + more
    paths = prompt_paths(requests, page_size, min_computed_tokens=0)
    bound = clairvoyant_bound(paths, capacity)
    # The bound stores whole pages only; a prompt's partial page takes one more while it is served.
    whole_pages = all(len(request.prompt) % page_size == 0 for request in requests)
    best = hits(requests, build("belady", min_computed_tokens=0), capacity, page_size)
    if whole_pages:
        assert sum(best) == bound.hit_tokens
    assert sum(best) <= bound.hit_tokens <= sharing_bound(paths).hit_tokens
    for name in NAMES:
        if name != "belady":
            assert sum(hits(requests, build(name), capacity, page_size)) <= sum(best), name


@given(prompts(), st.integers(0, 20))
@settings(max_examples=50)
def test_belady_with_a_token_to_compute_stays_below_the_bound(
    requests: list[Request], more: int
) -> None:
    """It need not reach it: the computed page takes room beside the cached one that it repeats."""
    capacity = max(len(request.prompt) for request in requests) + more
    bound = clairvoyant_bound(prompt_paths(requests, 1, min_computed_tokens=1), capacity)
    eviction = build("belady")
    eviction.on_future([RequestView(request) for request in requests])
    config = replace(SERIAL, min_computed_tokens=1)
    scheduler = build_scheduler(capacity, eviction=eviction, config=config)
    found = sum(serve_in_order(scheduler, requests).hits)
    assert found <= bound.hit_tokens
    # The pages of all requests fit: nothing is ever evicted.
    if capacity >= sum(len(request.prompt) for request in requests):
        assert found == bound.hit_tokens


@pytest.mark.parametrize("name", ["lru", "belady"])
@given(requests=prompts())
@settings(max_examples=15)
def test_a_larger_cache_never_hits_less(name: str, requests: list[Request]) -> None:
    parameters = {"min_computed_tokens": 0} if name == "belady" else {}
    smallest = max(len(request.prompt) for request in requests)
    found = [
        sum(hits(requests, build(name, **parameters), capacity))
        for capacity in range(smallest, smallest + 24)
    ]
    assert found == sorted(found)


@st.composite
def hinted_worlds(draw: st.DrawFn) -> World:
    """Simulations whose requests ask for pins, leases and priorities."""
    world = draw(worlds(replicas=2))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    requests = tuple(
        replace(
            request,
            pin=int(rng.integers(0, 80)) * int(rng.integers(2)),
            retain_for=float(rng.choice([0.0, 1.0, 20.0])),
            priority=int(rng.integers(3)),
            turn=int(rng.integers(3)),
        )
        for request in world.requests
    )
    return replace(world, requests=requests)


@pytest.mark.parametrize("name", NAMES)
@given(world=hinted_worlds())
@settings(max_examples=12)
def test_every_request_is_served_and_skipping_quiet_steps_changes_nothing(
    name: str, world: World
) -> None:
    record = world.run(eviction=lambda: build(name))
    assert len(record.requests["request"]) == len(world.requests)
    assert same(record, world.run(eviction=lambda: build(name), skip_quiet_steps=False)) == ""
