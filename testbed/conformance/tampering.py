"""Does a policy change what it should only read?"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TypeVar
from zlib import crc32

from testbed.conformance.case import Case
from testbed.conformance.serving import serve
from testbed.conformance.subject import Company, Gate, Subject
from testbed.conformance.wrapping import noting, wrapped
from testbed.core.radix_cache import RadixCache
from testbed.core.request import Sequence
from testbed.core.scheduler import Scheduler
from testbed.policies.scheduling.arrival import Fcfs

T = TypeVar("T")


class Tampered(Exception):
    """A policy changed the core's state behind the views."""


def serve_guarded(subject: Subject, case: Case) -> None:
    """Serve the case; Tampered if anything but the policy itself differs after one of its calls."""
    schedulers: list[Scheduler] = []

    def guard(name: str, act: Callable[[], T]) -> T:
        before = [_state(scheduler) for scheduler in schedulers]
        result = act()
        for scheduler, old in zip(schedulers, before, strict=False):
            new = _state(scheduler)
            for part, value in old.items():
                if new[part] != value:
                    raise Tampered(f"{subject.policy.__name__}.{name} changed {part}")
        return result

    policy = wrapped(subject.policy, guard)
    if subject.kind == "scheduling":
        serve(subject, case, policy=noting(policy, schedulers))
    else:
        company = Company(scheduling=noting(Gate if case.delays else Fcfs, schedulers))
        serve(subject, case, policy=policy, company=company)


def _state(scheduler: Scheduler) -> dict[str, Hashable]:
    """Everything a policy could reach through private fields, digested by part."""
    cache = scheduler.cache
    state: dict[str, Hashable] = {
        "the clock": (scheduler.now, scheduler.step, cache.step),
        "the queue": tuple(map(_sequence, scheduler.waiting)),
        "the batch": tuple(map(_sequence, scheduler.running)),
        "the page pool": (cache.num_free_pages, cache.num_evictable_pages),
    }
    if isinstance(cache, RadixCache):
        state["the radix tree"] = tuple(
            (node.serial, node.end, node.locks, node.last_access, node.hits, node.created)
            for node in cache.tree.nodes()
        )
    return state


def _sequence(sequence: Sequence) -> Hashable:
    request = sequence.request
    return (
        sequence.index,
        sequence.state,
        sequence.num_pages,
        sequence.num_matched_tokens,
        sequence.num_computed_tokens,
        sequence.num_generated_tokens,
        crc32(sequence.tokens.data),
        (request.client, request.weight, request.priority, request.arrival),
    )
