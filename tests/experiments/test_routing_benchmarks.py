"""The routing and cluster benchmarks on traces of a few requests."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

from experiments.benchmarks import cluster, routing
from testbed.policies import registry
from testbed.workloads import MooncakeTrace


@pytest.mark.usefixtures("data")
def test_sessions_are_conversations() -> None:
    requests = list(cluster.Conversations())
    # The fixture's prompts share their second block in pairs, at one request a second.
    programs = [request.program for request in requests]
    assert programs[0] == programs[1] != programs[2] == programs[3]
    assert len(set(programs)) == 3
    assert [request.arrival for request in requests] == [n / 64 for n in range(6)]


@pytest.mark.usefixtures("data")
def test_a_router_is_served_and_summed_up() -> None:
    affine, dealt = cluster.serve("session_affinity"), cluster.serve("round_robin")
    assert affine.router == "session_affinity"
    # Six replicas each compute the first block; as whole pages, three of the second blocks twice.
    pages = 700 // 16
    assert dealt.duplicated == 5 * 512 + 3 * (pages * 16 - 512)
    assert dealt.hit_rate == 0
    assert affine.duplicated < dealt.duplicated
    assert affine.imbalance >= 64 / 3 > dealt.imbalance >= 1
    assert 0 < affine.ttft_mean_s <= affine.ttft_p99_s


@pytest.mark.usefixtures("data")
def test_warm_traffic_is_the_trace_then_new_branches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "WARM", 6)
    warm = list(islice(routing.warm_traffic(), 20))
    for request, recorded in zip(warm[:6], MooncakeTrace(routing.TRACE), strict=True):
        assert np.array_equal(request.prompt, recorded.prompt)
    leaves = set()
    for request in warm[6:]:
        stem, leaf = request.prompt[: -routing.PAGE_SIZE], request.prompt[-routing.PAGE_SIZE :]
        assert any(np.array_equal(one.prompt[: len(stem)], stem) for one in warm[:6])
        assert leaf.max() < 0
        leaves.add(tuple(leaf.tolist()))
    assert len(leaves) == 14
    assert all(request.max_new_tokens == 1 for request in warm)


@pytest.mark.usefixtures("data")
def test_every_router_decides_on_a_warm_fleet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "WARM", 4)
    monkeypatch.setattr(routing, "PROBES", 2)
    monkeypatch.setattr(routing, "NODES", 200)
    times = routing.decision_times()
    assert times.keys() == registry.BUILT_IN["routing"].keys()
    assert all(len(measured) == 2 for measured in times.values())


def test_evictions_with_a_key_are_those_that_name_no_victims() -> None:
    keyed = routing.keyed_evictions()
    assert {"lru", "lfu", "fifo"} <= set(keyed)
    assert not {"sieve", "s3_fifo"} & set(keyed)


@pytest.mark.parametrize("name", ["lru", "lfu"])
def test_an_eviction_is_timed_on_a_full_pool(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "EVICTIONS", 20)
    assert routing.eviction_microseconds(lambda: registry.eviction(name), 300) > 0
