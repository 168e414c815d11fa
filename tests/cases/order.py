"""SERIAL-1: hits of small workloads by policy, eviction rule and granularity, and the bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import permutations
from statistics import fmean
from typing import Any

from testbed.core.scheduler import Scheduler
from testbed.core.views import RequestView
from testbed.metrics.bounds import clairvoyant_bound, sharing_bound
from testbed.metrics.prompt_paths import prompt_paths
from testbed.policies import SchedulingPolicy, registry
from testbed.policies.scheduling.cache_aware import Lpm
from testbed.policies.scheduling.depth_first import Dfs
from tests.cases.instance import (
    CAPACITY,
    NO_POLICY,
    PROMPTS,
    Field,
    Instance,
    Skip,
    has,
    is_list,
    is_whole,
    requests_of,
)
from tests.cases.serial import (
    SERIAL,
    UNLIMITED,
    Served,
    build_scheduler,
    serve_in_order,
    serve_waiting,
)

FIELDS: Mapping[str, Field] = {
    "prompts": PROMPTS,
    "capacity": CAPACITY,
    "precedence": Field(
        lambda pairs: is_list(pairs, lambda p: is_list(p, is_whole) and len(p) == 2),
        "pairs of prompt numbers",
    ),
    "warm": PROMPTS,
    "expected": Field(has, "an object"),
}
MAX_TRIED_PROMPTS = 6
"""Up to here every serving order is tried: 6! = 720 of them."""


def results(instance: Instance) -> dict[str, Any]:
    """Every expected value that the product can produce, in the shape of `expected`."""
    case = _Case(instance)
    expected = instance["expected"]
    sharing = sharing_bound(prompt_paths(case.requests, 1, min_computed_tokens=0))
    fcfs = case.in_order()
    return {
        "total_tokens": sharing.total_tokens,
        "distinct_prefix_tokens": sharing.total_tokens - sharing.hit_tokens,
        "upper_bound_cold": sharing.hit_tokens,
        "best_any_order_lru": _best_order(case, expected.get("best_any_order_lru", {})),
        "fcfs_token": {name: _by_eviction(case, name) for name in expected.get("fcfs_token", {})},
        "fcfs_optimal_eviction": case.clairvoyant(),
        "fcfs_hits_cap1": case.capped(fcfs),
        "fcfs_node_lru": _summary(case.in_order(granularity="node")),
        "fcfs_node_lru_sglang_touch": _summary(
            case.in_order(granularity="node", split_touch="sglang")
        ),
        "fcfs_block_lru": {
            name: _by_block(case, int(name.removeprefix("b")))
            for name in expected.get("fcfs_block_lru", {})
        },
        "dfs": _depth_first(case),
        "lpm_serial": _choice(case.waiting(case.scheduler(Lpm()))),
        "batch_inf": {name: _batches(case, name) for name in expected.get("batch_inf", {})},
    }


class _Case:
    """The prompts, and how to serve them on a cache that has served the warm ones."""

    def __init__(self, instance: Instance) -> None:
        everything = requests_of(instance["prompts"] + instance["warm"])
        self.requests = everything[: len(instance["prompts"])]
        self.warm = everything[len(instance["prompts"]) :]
        self.capacity: int = instance["capacity"]
        self._precedence: list[list[int]] = instance["precedence"]

    def allows(self, order: Sequence[int]) -> bool:
        """Whether the order keeps the precedence."""
        return all(order.index(first) < order.index(then) for first, then in self._precedence)

    def scheduler(self, policy: SchedulingPolicy | None = None, **options: Any) -> Scheduler:
        """A scheduler whose cache has served the warm prompts."""
        scheduler = build_scheduler(self.capacity, policy, **options)
        serve_in_order(scheduler, self.warm)
        return scheduler

    def waiting(self, scheduler: Scheduler) -> Served:
        """All prompts wait; the policy chooses."""
        return serve_waiting(scheduler, self.requests)

    def in_order(self, order: Sequence[int] | None = None, **options: Any) -> Served:
        """The prompts as they are, or in this order."""
        requests = self.requests if order is None else [self.requests[i] for i in order]
        return serve_in_order(self.scheduler(**options), requests)

    def capped(self, served: Served) -> int:
        """Hits when one token of each prompt must be computed: the cap changes the count only."""
        lengths = (len(self.requests[i].prompt) for i in served.order)
        return sum(min(hits, length - 1) for hits, length in zip(served.hits, lengths, strict=True))

    def clairvoyant(self) -> int:
        """The bound on hits in arrival order, the warm prompts served first and not counted."""
        paths = prompt_paths([*self.warm, *self.requests], 1, min_computed_tokens=0)
        bound = clairvoyant_bound(paths, self.capacity)
        return int(bound.request_hit_tokens[len(self.warm) :].sum())


def _summary(served: Served) -> dict[str, Any]:
    return {
        "hits": sum(served.hits),
        "per_request": served.hits,
        "evicted_tokens": served.evicted_tokens,
    }


def _choice(served: Served) -> dict[str, Any]:
    return {"order": served.order, "hits": sum(served.hits), "per_request": served.hits}


def _by_eviction(case: _Case, name: str) -> dict[str, Any] | Skip:
    if name not in registry.names("eviction"):
        return NO_POLICY
    if name == "belady":
        eviction = registry.eviction(name, min_computed_tokens=SERIAL.min_computed_tokens)
        eviction.on_future([RequestView(request) for request in [*case.warm, *case.requests]])
    else:
        eviction = registry.eviction(name)
    return _summary(case.in_order(eviction=eviction))


def _by_block(case: _Case, block_size: int) -> dict[str, Any]:
    blocks = case.capacity // block_size
    scheduler = build_scheduler(
        blocks,
        config=replace(SERIAL, min_computed_tokens=1),
        kind="block_hash",
        page_size=block_size,
    )
    serve_in_order(scheduler, case.warm)
    served = serve_in_order(scheduler, case.requests)
    return {"blocks": blocks, "per_request": served.hits, "hits": sum(served.hits)}


def _depth_first(case: _Case) -> dict[str, Any]:
    served = case.waiting(case.scheduler(Dfs()))
    by_node = case.waiting(case.scheduler(Dfs(), granularity="node"))
    return {
        **_choice(served),
        "evicted_tokens": served.evicted_tokens,
        "hits_cap1": case.capped(served),
        "node_hits": sum(by_node.hits),
        "node_evicted_tokens": by_node.evicted_tokens,
    }


def _batches(case: _Case, name: str) -> dict[str, Any] | Skip:
    """`POLICY_kN`: N requests a step on a cache that never evicts."""
    policy_name, _, size = name.rpartition("_k")
    if policy_name == "lpm_dedupe":
        policy: SchedulingPolicy = Lpm(dedupe_check=0, dedupe_share=1)
    elif policy_name in registry.names("scheduling"):
        policy = registry.scheduling(policy_name)
    else:
        return NO_POLICY
    config = replace(SERIAL, max_running=int(size))
    scheduler = build_scheduler(UNLIMITED, policy, config=config)
    serve_in_order(scheduler, case.warm)
    return _choice(serve_waiting(scheduler, case.requests))


def _best_order(case: _Case, expected: Mapping[str, Any]) -> dict[str, Any]:
    """Over all orders, each on a cache anew, where there are few; and what the given one hits."""
    names = ("best", "worst", "orders", "optimal_orders", "mean")
    untried = Skip(f"over {MAX_TRIED_PROMPTS} prompts: not every order is tried")
    found: dict[str, Any] = dict.fromkeys(names, untried)
    if len(case.requests) <= MAX_TRIED_PROMPTS:
        orders = filter(case.allows, permutations(range(len(case.requests))))
        hits = [sum(case.in_order(order).hits) for order in orders]
        best = max(hits)
        values = (best, min(hits), len(hits), hits.count(best), round(fmean(hits), 6))
        found = dict(zip(names, values, strict=True))
    if "a_best_order" in expected:
        given = expected["a_best_order"]
        if sorted(given) != list(range(len(case.requests))) or not case.allows(given):
            raise ValueError(f"a_best_order: {given} is no order of all prompts that may be served")
        reached = sum(case.in_order(given).hits)
        if isinstance(found["best"], Skip):
            found["best"] = reached
        as_good = reached == found["best"]
        found["a_best_order"] = given if as_good else f"{given} with {reached} hits"
    return found
