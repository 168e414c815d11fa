"""How the work of a policy grows: executed lines of Python, which are the same on every machine.

A line counts wherever it is executed while the policy decides, in the views too. What happens
inside one call of C code (sorting, list.remove, numpy) counts as one line, so a quadratic cost that
is hidden there is not found.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from math import log
from types import FrameType
from typing import Any, TypeVar

from testbed.conformance.case import Case, tokens
from testbed.conformance.serving import serve
from testbed.conformance.subject import Company, Subject
from testbed.conformance.wrapping import wrapped
from testbed.core.batch import StepResult
from testbed.core.config import CacheConfig, SchedulerConfig
from testbed.core.request import Request
from testbed.core.scheduler import Scheduler

T = TypeVar("T")

SIZES = (64, 256)
"""Waiting requests, or cached leaves."""
REPLICAS = (16, 64)
TOLERANCE = 1.3
"""Growth by so much more than that of n log n is flagged; n^1.5 grows 1.55 times as much."""


class Lines:
    """Counts the lines that run inside `around`; `count` may be reset."""

    def __init__(self) -> None:
        self.count = 0

    def around(self, name: str, act: Callable[[], T]) -> T:
        """Act, and count."""
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            return act()
        finally:
            sys.settrace(before)

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            self.count += 1
        return self._trace


def growth(subject: Subject) -> str | None:
    """What grows faster than n log n; None if nothing does."""
    measure, sizes, unit = {
        "scheduling": (_scheduling_work, SIZES, "waiting requests"),
        "eviction": (_eviction_work, SIZES, "cached leaves"),
        "routing": (_routing_work, REPLICAS, "replicas"),
    }[subject.kind]
    few, many = (measure(subject, size) for size in sizes)
    small, large = sizes
    accepted = TOLERANCE * large * log(large) / (small * log(small))
    for part, lines in few.items():
        ratio = many[part] / max(lines, 1)
        if ratio > accepted:
            return (
                f"{part}: {lines} lines at {small} {unit}, {many[part]} at {large}: "
                f"{ratio:.1f} times, n log n would be {accepted / TOLERANCE:.1f}"
            )
    return None


def _scheduling_work(subject: Subject, size: int) -> dict[str, int]:
    """Lines of `size` arrivals, of a pass that admits one, and of a pass that admits everybody."""
    lines = Lines()
    policy = wrapped(subject.policy, lines.around)
    found: dict[str, int] = {}
    for budget, part in ((24, "a pass that admits one"), (10**6, "a pass that admits all")):
        config = SchedulerConfig(
            max_running=10**6, chunk_size=budget, max_prefill_tokens=budget, reserve="ratio"
        )
        cache = CacheConfig(num_pages=64 * size, page_size=1)
        company = Company()
        scheduler = Scheduler(cache, config, subject.make(policy), company.eviction())
        # What was served before leaves prefixes and clients behind.
        for request in _requests(8):
            scheduler.add(request, 0.0)
        _run(scheduler)
        lines.count = 0
        now = 100.0
        for request in _requests(size):
            scheduler.add(request, now)
        found["arrivals"] = lines.count
        worst = 0
        for _ in range(4):
            lines.count = 0
            batch = scheduler.schedule(now)
            worst = max(worst, lines.count)
            if batch is None:
                # Whoever waits is delayed.
                now += 1000.0
                continue
            now += 0.1
            scheduler.commit(batch, StepResult(0.1), now)
        found[part] = worst
    return found


def _requests(count: int) -> list[Request]:
    """Four hot prefixes, a client for every four requests, hints of every sort."""
    return [
        Request(
            i,
            tokens(
                [*range(100 * (i % 4), 100 * (i % 4) + 8), *range(10_000 + 8 * i, 10_008 + 8 * i)]
            ),
            output=tokens(range(3)),
            client=f"c{i % max(1, count // 4)}",
            priority=i % 7,
            program=f"p{i % max(1, count // 3)}",
            expected_output=1 + i % 5,
            deadline=float(i * 7 % 31),
        )
        for i in range(count)
    ]


def _run(scheduler: Scheduler) -> None:
    now = 0.0
    while scheduler.waiting or scheduler.running or scheduler.delayed:
        batch = scheduler.schedule(now)
        if batch is None:
            now = max(now + 1.0, scheduler.next_release or 0.0)
        else:
            scheduler.commit(batch, StepResult(0.0), now)


def _eviction_work(subject: Subject, size: int) -> dict[str, int]:
    """Lines of one step's eviction when `size` leaves are cached."""
    lines = Lines()
    policy = wrapped(subject.policy, lines.around)
    cache = CacheConfig(num_pages=8 * size, page_size=1, cache_outputs=False)
    eviction = subject.make(policy)
    requests = [
        Request(i, tokens([i % 5, *range(100 * i, 100 * i + 7)]), output=tokens([1]))
        for i in range(size + 24)
    ]
    if eviction.oracle:
        from testbed.core.views import RequestView

        eviction.on_future([RequestView(request) for request in requests])
    scheduler = Scheduler(cache, SchedulerConfig(), Company().scheduling(), eviction)
    worst = 0
    for request in requests:
        scheduler.add(request, float(request.id))
        lines.count = 0
        _run(scheduler)
        if request.id >= size + 16:
            worst = max(worst, lines.count)
    return {"an eviction": worst}


def _routing_work(subject: Subject, size: int) -> dict[str, int]:
    """Lines of a run of 24 requests over `size` replicas."""
    lines = Lines()
    policy = wrapped(subject.policy, lines.around)
    requests = tuple(
        Request(i, tokens([*range(8), i % 3 + 8, i]), output=tokens(range(4)), arrival=0.001 * i)
        for i in range(24)
    )
    case = Case("routing", requests, CacheConfig(64, page_size=1), replicas=size)
    serve(subject, case, policy=policy, skip_quiet_steps=True)
    return {"24 choices": lines.count}
