"""FAIR-1: the picks and counters of fair policies, decision by decision."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from testbed.core.batch import StepResult
from testbed.core.request import Request
from testbed.core.scheduler import Scheduler
from testbed.policies import SchedulingPolicy, registry
from testbed.policies.scheduling.fair import Dlpm
from testbed.policies.scheduling.vtc import Vtc
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
    is_whole,
    request_of,
)
from tests.cases.serial import build_scheduler

WEIGHT = Field(is_number, "a number of at least 0")
FIELDS: Mapping[str, Field] = {
    "w_p": WEIGHT,
    "w_q": WEIGHT,
    "w_e": WEIGHT,
    "quantum": Field(lambda value: is_whole(value, 1), "a whole number from 1"),
    "capacity": CAPACITY,
    "weights": Field(
        lambda value: isinstance(value, dict) and all(map(is_number, value.values())),
        "an object of client weights",
    ),
    "requests": Field(
        lambda value: is_list(
            value,
            lambda r: has(
                r,
                client=lambda client: isinstance(client, str),
                at=is_number,
                prompt=is_prompt,
                output=lambda count: is_whole(count, 1),
            ),
        ),
        "a list of requests with client, at, prompt and output",
    ),
    "expected": Field(has, "an object"),
}


def results(instance: Instance) -> dict[str, Any]:
    """What each policy picks, and what its counters say after each service."""
    return {name: _by_policy(instance, name) for name in instance["expected"]}


def _by_policy(instance: Instance, name: str) -> dict[str, Any] | Skip:
    policy: SchedulingPolicy
    if name.startswith("vtc_"):
        policy = registry.scheduling(
            "vtc",
            prompt_weight=instance["w_p"],
            output_weight=instance["w_q"],
            rule=name.removeprefix("vtc_"),
        )
    elif name == "dlpm":
        policy = registry.scheduling(
            "dlpm",
            quantum=instance["quantum"],
            extend_weight=instance["w_e"],
            output_weight=instance["w_q"],
        )
    elif name in registry.names("scheduling"):
        policy = registry.scheduling(name)
    else:
        return NO_POLICY
    services = _serve(instance, policy)
    hits = [service.hits for service in services]
    found: dict[str, Any] = {
        "order": [service.request.id for service in services],
        "clients": "".join(service.request.client for service in services),
        "per_request_hits": hits,
        "hits": sum(hits),
    }
    if isinstance(policy, Vtc):
        found["counters_after"] = [service.counters for service in services]
    if isinstance(policy, Dlpm):
        found["deficits_after"] = [service.counters for service in services]
        found["refill_rounds"] = policy.refill_rounds
    return found


class _Service(NamedTuple):
    request: Request
    hits: int
    counters: dict[str, float]


def _serve(instance: Instance, policy: SchedulingPolicy) -> list[_Service]:
    """Decisions 0, 1, ...: before each, what is due arrives by number; after it, one request runs
    until it has left."""
    weights = instance["weights"]
    coming = [
        request_of(
            number,
            request["prompt"],
            num_output=request["output"],
            client=request["client"],
            weight=weights.get(request["client"], 1),
            arrival=float(request["at"]),
        )
        for number, request in enumerate(instance["requests"])
    ]
    scheduler = build_scheduler(instance["capacity"], policy, cache_outputs=False)
    known: dict[str, None] = {}
    services: list[_Service] = []
    decision = 0.0
    while coming or scheduler.waiting:
        if not scheduler.waiting:
            decision = max(decision, min(request.arrival for request in coming))
        for request in [request for request in coming if request.arrival <= decision]:
            coming.remove(request)
            known[request.client] = None
            scheduler.add(request, decision)
        request, hits = _serve_next(scheduler, decision)
        services.append(_Service(request, hits, _counters(policy, known)))
        decision += 1
    return services


def _serve_next(scheduler: Scheduler, decision: float) -> tuple[Request, int]:
    batch = scheduler.schedule(decision)
    assert batch is not None
    sequence = batch.prefills[0].sequence
    scheduler.commit(batch, StepResult(0.0), decision)
    while scheduler.running:
        batch = scheduler.schedule(decision)
        assert batch is not None
        scheduler.commit(batch, StepResult(0.0), decision)
    return sequence.request, sequence.num_cached_tokens


def _counters(policy: SchedulingPolicy, clients: Mapping[str, None]) -> dict[str, float]:
    if isinstance(policy, Vtc):
        return {client: policy.counter(client) for client in clients}
    if isinstance(policy, Dlpm):
        return {client: policy.deficit(client) for client in clients}
    return {}
