"""Random small worlds: workloads, pools, switches and policies for whole simulations."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from hypothesis import strategies as st

from testbed.core.config import CacheConfig, SchedulerConfig
from testbed.core.policy import EvictionPolicy, RoutingPolicy, SchedulingPolicy
from testbed.core.records import RunRecord
from testbed.core.replica_view import ReplicaView
from testbed.core.request import Request
from testbed.core.source import RequestSource
from testbed.core.views import RequestView
from testbed.policies import registry
from testbed.policies.eviction.recency import Lru
from testbed.policies.routing.load import RoundRobin
from testbed.policies.scheduling.arrival import Fcfs
from testbed.sim.hardware import get_accelerator, get_efficiency, get_model
from testbed.sim.latency import FixedLatency, LatencyModel, Roofline
from testbed.sim.world import simulate
from tests.core.building import Mru, make_request

SCHEDULING: dict[str, Callable[[], SchedulingPolicy]] = {
    "fcfs": Fcfs,
    "fcfs skip": lambda: registry.scheduling("fcfs", on_misfit="skip"),
    "lpm": lambda: registry.scheduling("lpm"),
    "lpm skip": lambda: registry.scheduling("lpm", on_misfit="skip"),
    "lpm dedupe": lambda: registry.scheduling("lpm", dedupe_check=4, dedupe_share=2),
    "dfs": lambda: registry.scheduling("dfs"),
    "dfs skip": lambda: registry.scheduling("dfs", on_misfit="skip"),
    "dfs_weight": lambda: registry.scheduling("dfs_weight"),
    "dfs_weight skip": lambda: registry.scheduling("dfs_weight", on_misfit="skip"),
    "vtc": lambda: registry.scheduling("vtc"),
    "vtc artifact": lambda: registry.scheduling("vtc", rule="artifact", output_weight=0.3),
    "dlpm": lambda: registry.scheduling("dlpm", quantum=7),
}
EVICTION: dict[str, Callable[[], EvictionPolicy]] = {
    "lru": lambda: registry.eviction("lru"),
    "lfu": lambda: registry.eviction("lfu"),
    "fifo": lambda: registry.eviction("fifo"),
    "mru": Mru,
}


class Affinity(RoutingPolicy):
    """The replica with the longest match, then the fewest sequences: looks at everything shown."""

    def choose(self, request: RequestView, replicas: tuple[ReplicaView, ...], now: float) -> int:
        def rank(replica: ReplicaView) -> tuple[int, int, int]:
            load = replica.num_waiting + replica.num_running
            return -replica.peek(request), load, replica.index

        return min(replicas, key=rank).index


ROUTING: dict[str, Callable[[], RoutingPolicy]] = {
    "round_robin": RoundRobin,
    "least_loaded": lambda: registry.routing("least_loaded"),
    "affinity": Affinity,
}


@dataclass(frozen=True)
class World:
    """One simulation; runs as often as it is asked to, each time with policies of its own."""

    requests: tuple[Request, ...]
    cache: CacheConfig
    scheduler: SchedulerConfig
    latency: LatencyModel
    policy: str = "fcfs"
    eviction: str = "lru"
    routing: str = "round_robin"
    replicas: int = 1

    def run(self, **changes: Any) -> RunRecord:
        arguments: dict[str, Any] = {
            "cache": self.cache,
            "scheduler": self.scheduler,
            "policy": SCHEDULING[self.policy],
            "eviction": EVICTION[self.eviction],
            "latency": self.latency,
            "routing": ROUTING[self.routing](),
            "replicas": self.replicas,
            "record_decisions": True,
            "check_invariants": True,
        }
        requests = changes.pop("requests", self.requests)
        return simulate(requests, **{**arguments, **changes})


def small_world(requests: list[Request], num_pages: int = 1000, **switches: Any) -> World:
    """One replica, pages of one token, half a second a step and a quarter for each token."""
    in_cache = {k: v for k, v in switches.items() if k in CacheConfig.__dataclass_fields__}
    in_world = {k: v for k, v in switches.items() if k in World.__dataclass_fields__}
    rest = {k: v for k, v in switches.items() if k not in in_cache and k not in in_world}
    world = World(
        tuple(requests),
        CacheConfig(num_pages=num_pages, **{"page_size": 1, **in_cache}),
        SchedulerConfig(**rest),
        FixedLatency(0.25, minimum=0.5),
    )
    return replace(world, **in_world)


@st.composite
def workloads(draw: st.DrawFn, page_size: int, most: int = 12) -> tuple[Request, ...]:
    """Requests that share prefixes and arrive at nearly the same times, often at step ends."""
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    count = draw(st.integers(1, most))
    unit = page_size if page_size < 4 else page_size // 2
    gaps = rng.choice([0.0, 0.0, 0.25, 0.5, 1.0, 0.3, 2.0, 9.0], size=count)
    requests = []
    for number, arrival in enumerate(np.cumsum(gaps).tolist()):
        letters = rng.integers(0, 3, size=rng.integers(1, 6)).tolist()
        prompt = [letter for letter in letters for _ in range(unit)]
        prompt += [7] * int(rng.integers(0, page_size + 1))
        # Outputs are made of prompt tokens, so that a later prompt may go on where one ended.
        output = rng.integers(0, 2, size=rng.integers(1, 12)).tolist()
        client = "abc"[rng.integers(3)]
        requests.append(
            make_request(
                100 + number,
                prompt,
                output,
                arrival=arrival,
                max_new_tokens=len(output) + int(rng.integers(0, 4)),
                client=client,
                weight={"a": 1.0, "b": 2.0, "c": 0.5}[client],
                namespace="" if rng.random() < 0.8 else "n",
            )
        )
    return tuple(requests)


def latencies() -> list[LatencyModel]:
    """Steps that end when requests arrive, steps of odd lengths, and a real model's."""
    model, card = get_model("qwen2.5-7b"), get_accelerator("h100")
    roofline = Roofline(model, card, get_efficiency("h100", "sglang"))
    return [FixedLatency(0.25, minimum=0.5), FixedLatency(0.1, minimum=0.05), roofline]


@st.composite
def worlds(draw: st.DrawFn, replicas: int = 3) -> World:
    """A world of any switches, with a pool that is tiny or never full."""
    page_size = draw(st.sampled_from([1, 2, 4, 16]))
    kinds: list[Literal["radix", "block_hash", "none"]] = ["radix", "radix", "block_hash", "none"]
    cache = CacheConfig(
        num_pages=draw(st.one_of(st.integers(8, 24), st.just(5000))),
        page_size=page_size,
        kind=draw(st.sampled_from(kinds)),
        granularity=draw(st.sampled_from(["page", "node"])),
        split_touch=draw(st.sampled_from(["ideal", "sglang"])),
        touch_on_peek=draw(st.booleans()),
        insert_at=draw(st.sampled_from(["commit", "schedule"])),
        cache_outputs=draw(st.booleans()),
    )
    scheduler = SchedulerConfig(
        max_running=draw(st.sampled_from([1, 2, 3, 256])),
        chunk_size=draw(st.sampled_from([0, page_size, 2 * page_size + 1, 8192])),
        max_prefill_tokens=draw(st.sampled_from([page_size, 16384])),
        batching=draw(st.sampled_from(["mixed", "prefill_first"])),
        reserve=draw(st.sampled_from(["full", "full", "ratio", "peak"])),
        reserve_ratio=0.9,
        reserve_ratio_floor=0.05,
        reserve_decay_steps=5,
        reserve_newcomer=draw(st.booleans()),
        victim=draw(st.sampled_from(["last_admitted", "fewest_generated"])),
        min_computed_tokens=draw(st.sampled_from([0, 1, 1])),
    )
    return World(
        draw(workloads(page_size)),
        cache,
        scheduler,
        draw(st.sampled_from(latencies())),
        draw(st.sampled_from(sorted(SCHEDULING))),
        draw(st.sampled_from(sorted(EVICTION))),
        draw(st.sampled_from(sorted(ROUTING))),
        draw(st.integers(1, replicas)),
    )


def same(first: RunRecord, second: RunRecord) -> str:
    """Where two records differ first; empty if they are equal to the last bit."""
    for table in ("requests", "steps", "decisions"):
        ours, theirs = getattr(first, table), getattr(second, table)
        assert (ours is None) == (theirs is None)
        for name in ours or ():
            if ours[name].dtype != theirs[name].dtype:
                return f"{table}.{name}: {ours[name].dtype} and {theirs[name].dtype}"
            if ours[name].tolist() != theirs[name].tolist():
                return f"{table}.{name}: {ours[name].tolist()} and {theirs[name].tolist()}"
    return ""


def plain_run(requests: Iterable[Request] | RequestSource, **changes: Any) -> RunRecord:
    """A second a token on one replica of 100 pages of a token, first come, first served."""
    arguments: dict[str, Any] = {
        "cache": CacheConfig(100, 1),
        "scheduler": SchedulerConfig(),
        "policy": Fcfs,
        "eviction": Lru,
        "latency": FixedLatency(1.0),
        "routing": RoundRobin(),
    }
    return simulate(requests, **{**arguments, **changes})


def table(columns: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows of a recorded table, by column name."""
    return [
        dict(zip(columns, row, strict=True))
        for row in zip(*(values.tolist() for values in columns.values()), strict=True)
    ]
