"""The service gap of two backlogged clients stays within what VTC and DLPM promise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.core.config import CacheConfig, SchedulerConfig
from testbed.core.policy import SchedulingPolicy
from testbed.core.records import RunRecord
from testbed.core.request import Request
from testbed.core.views import SequenceView
from testbed.policies.eviction.recency import Lru
from testbed.policies.routing.load import RoundRobin
from testbed.policies.scheduling.arrival import Fcfs
from testbed.policies.scheduling.fair import Dlpm
from testbed.policies.scheduling.vtc import Vtc, VtcOracle
from testbed.sim.hardware import get_accelerator, get_efficiency, get_model
from testbed.sim.latency import FixedLatency, Roofline
from testbed.sim.world import simulate
from testbed.workloads import Client, MultiClientWorkload
from tests.core.building import make_request
from tests.policies.service import ServiceGaps
from tests.sim.worlds import small_world

Jobs = list[tuple[str, int, int, float]]
"""Client, prompt tokens, output tokens, arrival."""
WEIGHTS = {"a": 1.0, "b": 1.0, "c": 1.0}


@st.composite
def jobs(draw: st.DrawFn) -> Jobs:
    """Up to 40 requests of three clients, the first in excess."""
    job = st.tuples(
        st.sampled_from("aabbc"),
        st.integers(1, 12),
        st.integers(1, 10),
        st.sampled_from([0.0, 0.0, 0.0, 7.0, 20.0]),
    )
    return sorted(draw(st.lists(job, min_size=8, max_size=40)), key=lambda job: job[3])


def requests_of(jobs: Jobs, shared: bool, weights: dict[str, float]) -> list[Request]:
    """With prompts that are prefixes of one another, or have nothing in common."""
    return [
        make_request(
            n,
            [token + 100 * n * (not shared) for token in range(prompt)],
            output,
            client=client,
            weight=weights[client],
            arrival=arrival,
            expected_output=1 + (7 * n) % 12,
        )
        for n, (client, prompt, output, arrival) in enumerate(jobs)
    ]


def prompt_tokens(sequence: SequenceView, cached: int, extend: int) -> int:
    return sequence.num_prompt_tokens


def extended_tokens(sequence: SequenceView, cached: int, extend: int) -> int:
    return extend


class OracleGaps(ServiceGaps):
    oracle = True


def largest_gap(
    requests: list[Request],
    policy: SchedulingPolicy,
    charge: Callable[..., int],
    prices: tuple[float, float],
    num_pages: int,
    kind: str,
    max_running: int,
) -> float:
    watch = OracleGaps if policy.oracle else ServiceGaps
    gaps = watch(policy, charge, prices)
    world = small_world(requests, num_pages, kind=kind)
    config = SchedulerConfig(chunk_size=16, max_running=max_running)
    world = replace(world, scheduler=config, latency=FixedLatency(1.0))
    world.run(policy=lambda: gaps)
    return gaps.largest


def vtc_stays_in_bound(
    jobs: Jobs,
    prices: tuple[float, float],
    weights: dict[str, float],
    build: Callable[[float, float], SchedulingPolicy],
    num_pages: int,
    *,
    serial: bool,
) -> None:
    requests = requests_of(jobs, False, weights)
    longest = max(prompt for _, prompt, _, _ in jobs)
    batch = max(p + o for _, p, o, _ in jobs) if serial else num_pages
    bound = 2 * max(prices[0] * longest, prices[1] * batch) / min(weights.values())
    policy = build(*prices)
    gap = largest_gap(
        requests, policy, prompt_tokens, prices, num_pages, "none", 1 if serial else 256
    )
    assert gap <= bound


VTC_CASES = st.tuples(
    jobs(),
    st.sampled_from([(1.0, 2.0), (1.0, 1.0), (0.25, 1.0), (1.0, 0.0)]),
    st.sampled_from([WEIGHTS, {"a": 1.0, "b": 2.0, "c": 0.5}]),
    st.sampled_from(
        [
            Vtc,
            lambda p, q: Vtc(p, q, rule="artifact"),
            lambda p, q: Vtc(p, q, prediction="hint"),
            lambda p, q: Vtc(p, q, prediction="average"),
            VtcOracle,
        ]
    ),
    st.integers(22, 60),
)


@settings(max_examples=100)
@given(VTC_CASES)
def test_vtc(case: tuple[Any, ...]) -> None:
    vtc_stays_in_bound(*case, serial=False)


@pytest.mark.slow
@settings(max_examples=3000)
@given(VTC_CASES)
def test_vtc_in_3000_serial_cases(case: tuple[Any, ...]) -> None:
    vtc_stays_in_bound(*case, serial=True)


def dlpm_stays_in_bound(
    jobs: Jobs, quantum: int, shared: bool, num_pages: int, *, serial: bool
) -> None:
    requests = requests_of(jobs, shared, WEIGHTS)
    longest = max(prompt for _, prompt, _, _ in jobs)
    if serial:
        batch = max(p + o for _, p, o, _ in jobs)
    else:
        # Sequences that share a prefix hold more tokens than the pool has pages.
        batch = num_pages if not shared else sum(p + o for _, p, o, _ in jobs)
    gap = largest_gap(
        requests,
        Dlpm(quantum),
        extended_tokens,
        (1.0, 2.0),
        num_pages,
        "radix",
        1 if serial else 256,
    )
    assert gap <= 2 * (quantum + longest + 2 * batch)


DLPM_CASES = st.tuples(jobs(), st.sampled_from([1, 5, 20, 100]), st.booleans(), st.integers(22, 60))


@settings(max_examples=100)
@given(DLPM_CASES)
def test_dlpm(case: tuple[Any, ...]) -> None:
    dlpm_stays_in_bound(*case, serial=False)


@pytest.mark.slow
@settings(max_examples=3000)
@given(DLPM_CASES)
def test_dlpm_in_3000_serial_cases(case: tuple[Any, ...]) -> None:
    dlpm_stays_in_bound(*case, serial=True)


def test_fcfs_breaks_the_bound_so_that_it_means_something() -> None:
    requests = [
        make_request(n, range(100 * n, 100 * n + 4), 2, client="b" if n % 10 == 9 else "a")
        for n in range(100)
    ]
    prices = (1.0, 2.0)
    for policy, fair in ((Vtc(), True), (Fcfs(), False)):
        gap = largest_gap(requests, policy, prompt_tokens, prices, 20, "none", 256)
        assert (gap <= 2 * max(1.0 * 4, 2.0 * 20)) is fair


POOL = 10_000
"""Tokens, as in the artifact's runs of Llama-2-7B on an A10G."""


def serve(policy: SchedulingPolicy, clients: list[Client], duration: float) -> RunRecord:
    """Full simulation with the real model's step times."""
    card = get_accelerator("a10g")
    return simulate(
        MultiClientWorkload(clients, duration),
        cache=CacheConfig(POOL, 1, kind="none"),
        scheduler=SchedulerConfig(batching="prefill_first", chunk_size=0, reserve="peak"),
        policy=lambda: policy,
        eviction=Lru,
        latency=Roofline(get_model("llama-2-7b"), card, get_efficiency("a10g", "vllm")),
        routing=RoundRobin(),
    )


@pytest.mark.parametrize(
    ("policy", "fair"),
    [(Vtc(), True), (Vtc(prediction="average"), True), (VtcOracle(), True), (Fcfs(), False)],
)
def test_the_overload_experiment_stays_within_40_000(policy: SchedulingPolicy, fair: bool) -> None:
    watch = OracleGaps if policy.oracle else ServiceGaps
    gaps = watch(policy, prompt_tokens, (1.0, 2.0))
    serve(gaps, [Client("light", 1.5), Client("heavy", 3.0)], 60.0)
    assert (gaps.largest <= 2 * max(256, 2 * POOL)) is fair


def test_clients_below_their_share_are_served_at_once_whatever_others_ask() -> None:
    clients = [Client("a", 0.25), Client("b", 0.5), Client("flood", 3.0)]
    waits: dict[str, dict[str, float]] = {}
    for policy in (Vtc(), Fcfs()):
        record = serve(policy, clients, 60.0).requests
        ttft = record["first_token_s"] - record["arrival_s"]
        waits[type(policy).__name__] = {
            client.name: float(ttft[record["client"] == client.name].mean()) for client in clients
        }
    vtc, fcfs = waits["Vtc"], waits["Fcfs"]
    assert max(vtc["a"], vtc["b"]) < vtc["flood"] / 5
    assert max(vtc["a"], vtc["b"]) < fcfs["a"] / 3
