"""TIMED-1: arrival times and unit-time tokens through the simulator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import permutations
from math import factorial
from typing import Any

from testbed.core.config import CacheConfig
from testbed.core.request import Request
from testbed.policies import Proposals, SchedulerView, SchedulingPolicy, registry
from testbed.policies.eviction.recency import Lru
from testbed.policies.routing.load import RoundRobin
from testbed.sim.latency import FixedLatency
from testbed.sim.world import simulate
from tests.cases.instance import (
    CAPACITY,
    NO_POLICY,
    Field,
    Instance,
    Skip,
    has,
    is_list,
    is_number,
    is_prompt,
    request_of,
)
from tests.cases.serial import SERIAL

FIELDS: Mapping[str, Field] = {
    "capacity": CAPACITY,
    "requests": Field(
        lambda value: is_list(value, lambda r: has(r, arrival=is_number, prompt=is_prompt)),
        "a list of requests with arrival and prompt",
    ),
    "expected": Field(has, "an object"),
}
MAX_TRIED_ORDERS = 720


class _Ranked(SchedulingPolicy):
    """Serves the visible request that comes first in `order`; each order that never idles is one
    of these."""

    def __init__(self, order: Sequence[int]) -> None:
        self._rank = {request: rank for rank, request in enumerate(order)}

    def candidates(self, view: SchedulerView) -> Proposals:
        """The first of the order."""
        yield min(view.waiting, key=lambda sequence: self._rank[sequence.id])


def results(instance: Instance) -> dict[str, Any]:
    """Orders and times by policy, and the optimum over all orders that never idle."""
    requests = [
        request_of(number, request["prompt"], arrival=float(request["arrival"]))
        for number, request in enumerate(instance["requests"])
    ]
    requests.sort(key=lambda request: request.arrival)
    capacity = instance["capacity"]
    return {
        name: _optimum(requests, capacity)
        if name == "optimum_non_idling"
        else _by_policy(requests, capacity, name)
        for name in instance["expected"]
    }


def _by_policy(requests: list[Request], capacity: int, name: str) -> dict[str, Any] | Skip:
    policy, _, k = name.rpartition("_")
    if policy == "k_lpm":
        return _serve(requests, capacity, partial(registry.scheduling, policy, k=int(k)))
    if name not in registry.names("scheduling"):
        return NO_POLICY
    return _serve(requests, capacity, partial(registry.scheduling, name))


def _optimum(requests: list[Request], capacity: int) -> dict[str, Any] | Skip:
    ids = [request.id for request in requests]
    # An order that never idles begins with one of those that arrive first.
    first = [request.id for request in requests if request.arrival == requests[0].arrival]
    if len(first) * factorial(len(ids) - 1) > MAX_TRIED_ORDERS:
        return Skip(f"over {MAX_TRIED_ORDERS} orders: they are not tried")
    orders = (order for order in permutations(ids) if order[0] in first)
    runs = [_serve(requests, capacity, partial(_Ranked, order)) for order in orders]
    return {name: min(run[name] for run in runs) for name in ("max_ttft", "sum_ttft")}


def _serve(
    requests: list[Request], capacity: int, policy: Callable[[], SchedulingPolicy]
) -> dict[str, Any]:
    record = simulate(
        requests,
        cache=CacheConfig(capacity, page_size=1),
        scheduler=SERIAL,
        policy=policy,
        eviction=Lru,
        latency=FixedLatency(1.0, minimum=1.0),
        routing=RoundRobin(),
    ).requests
    by_admission = record["admitted_step"].argsort()
    by_id = record["request"].argsort()
    ttft = (record["first_token_s"] - record["arrival_s"])[by_id]
    return {
        "order": record["request"][by_admission].tolist(),
        "ttft": ttft.tolist(),
        "max_ttft": float(ttft.max()),
        "sum_ttft": float(ttft.sum()),
        "makespan": float(record["finish_s"].max()),
        "hits": int(record["cached_tokens"].sum()),
    }
