"""The adversarial workloads of the conformance kit, all from one seed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from testbed.conformance.case import Case, tokens
from testbed.core.config import PRESETS, CacheConfig, SchedulerConfig, with_preset
from testbed.core.request import Request

TIGHT = SchedulerConfig(
    max_running=6, chunk_size=24, reserve="ratio", reserve_ratio=0.1, reserve_ratio_floor=0.05
)
"""Admits more than memory can hold to the end, so that sequences are preempted."""
CALM = SchedulerConfig(max_running=4, chunk_size=32)


class _Writer:
    """Draws requests; ids are arrival order."""

    def __init__(self, seed: int) -> None:
        self._draw = np.random.default_rng(seed)
        self._fresh = 1000
        self.prefixes = [self.fresh(length) for length in (24, 16, 40)]

    def fresh(self, length: int) -> list[int]:
        """Token ids that nobody had before."""
        self._fresh += length
        return list(range(self._fresh - length, self._fresh))

    def below(self, limit: int) -> int:
        """An integer from 0 to limit - 1."""
        return int(self._draw.integers(limit))

    def shared(self) -> list[int]:
        """One of three prefixes and up to 11 tokens of its own."""
        return self.prefixes[self.below(3)] + self.fresh(1 + self.below(11))

    def requests(
        self,
        count: int,
        prompt: Callable[[int], list[int]] | None = None,
        arrival: Callable[[int], float] = lambda i: 0.008 * i,
        output: Callable[[int], int] | None = None,
        hints: Callable[[int], dict[str, Any]] = lambda i: {"client": "abc"[i % 3]},
    ) -> tuple[Request, ...]:
        """`count` requests; what is not given is drawn."""
        return tuple(
            Request(
                i,
                tokens(prompt(i) if prompt else self.shared()),
                output=tokens(self.fresh(output(i) if output else 1 + self.below(12))),
                arrival=arrival(i),
                **hints(i),
            )
            for i in range(count)
        )


def battery(seed: int = 0) -> tuple[Case, ...]:
    """Every case, of at most 40 requests each."""
    write = _Writer(seed)
    small, pages = CacheConfig(96, page_size=1), CacheConfig(8, page_size=16)
    roomy = CacheConfig(400, page_size=1)
    giant = write.fresh(110)
    nested = write.fresh(60)
    cases = [
        Case("a single request", write.requests(1), pages),
        Case("bursts", write.requests(30, arrival=lambda i: 2.0 * (i // 10)), small, CALM),
        Case(
            "one giant prompt",
            write.requests(20, prompt=lambda i: giant if i == 5 else write.shared()),
            CacheConfig(128, page_size=1),
            CALM,
        ),
        Case("identical prompts", write.requests(20, prompt=lambda i: nested), small, CALM),
        Case("a tiny pool", write.requests(24, output=lambda i: 20), small, TIGHT),
        Case(
            "a tiny pool of pages",
            write.requests(24, output=lambda i: 25),
            pages,
            replace(TIGHT, batching="prefill_first", chunk_size=8192, victim="fewest_generated"),
        ),
        Case(
            "many clients",
            write.requests(
                40, arrival=lambda i: 0.0, hints=_many_clients
            ),
            roomy,
            CALM,
        ),
        Case(
            "namespaces",
            write.requests(
                21, prompt=lambda i: nested[: 40 + i], hints=lambda i: {"namespace": "xyz"[i % 3]}
            ),
            small,
            CALM,
        ),
        Case(
            "the peak reserve",
            write.requests(24),
            small,
            SchedulerConfig(max_running=5, reserve="peak", batching="prefill_first"),
        ),
        Case(
            "delays and refusals",
            write.requests(28, prompt=lambda i: write.fresh(150) if i % 9 == 4 else write.shared()),
            pages,
            CALM,
            delays=True,
        ),
        Case("nothing shared", write.requests(20, prompt=lambda i: write.fresh(30)), small, CALM),
        Case(
            "everything shared",
            write.requests(24, prompt=lambda i: nested[: 1 + i * 13 % 60]),
            CacheConfig(80, page_size=1, granularity="node"),
            CALM,
        ),
        Case(
            "long outputs",
            write.requests(10, arrival=lambda i: 0.15 * i, output=lambda i: 60 + write.below(60)),
            CacheConfig(260, page_size=1),
            CALM,
        ),
        Case("hints", write.requests(28, hints=lambda i: _hints(i, write.below)), small, TIGHT),
        Case("conversations", _conversations(write, 6, 4), CacheConfig(160, page_size=4), CALM),
        Case("no cache", write.requests(16), CacheConfig(12, kind="none"), CALM),
        Case(
            "insertion at schedule",
            write.requests(20),
            CacheConfig(24, page_size=4, insert_at="schedule", cache_outputs=False),
            CALM,
        ),
        Case("one slot", write.requests(16), small, SchedulerConfig(max_running=1, chunk_size=0)),
        Case(
            "three replicas", write.requests(36, arrival=lambda i: 0.002 * i), small, CALM, 3,
            delays=True,
        ),
    ]  # fmt: skip
    for name in PRESETS:
        cache, scheduler = with_preset(name, small, SchedulerConfig(max_running=6))
        cases.append(Case(f"{name} semantics", write.requests(20), cache, scheduler))
    return tuple(cases)


def spread(cases: Iterable[Case]) -> tuple[Case, ...]:
    """The cases on 2 to 5 replicas each, for routers, every third with a stale sight of them."""
    return tuple(
        replace(case, replicas=2 + place % 4, staleness=0.05 if place % 3 == 2 else 0.0)
        for place, case in enumerate(cases)
    )


def _many_clients(i: int) -> dict[str, Any]:
    """One of 20 clients, each with a weight."""
    client = i * 7 % 20
    return {"client": f"c{client}", "weight": (0.5, 1.0, 3.0)[client % 3]}


def _hints(i: int, below: Callable[[int], int]) -> dict[str, Any]:
    """Every hint that a request can carry."""
    return {
        "client": "ab"[i % 2],
        "priority": below(5) - 2,
        "deadline": None if i % 3 == 0 else 0.008 * i + 0.05 * (1 + below(9)),
        "program": f"p{i % 5}" if i % 4 else None,
        "turn": i // 5,
        "expected_output": None if i % 5 == 0 else 1 + below(20),
        "pin": 0 if i % 4 else 16,
        "retain_for": 0.0 if i % 6 else 0.1,
    }


def _conversations(write: _Writer, programs: int, turns: int) -> tuple[Request, ...]:
    """Each turn's prompt is the last one's prompt and output, and 6 tokens more."""
    said: dict[int, list[int]] = {p: list(write.prefixes[p % 3]) for p in range(programs)}
    requests: list[Request] = []
    for turn in range(turns):
        for program in range(programs):
            prompt, output = said[program] + write.fresh(6), write.fresh(5)
            said[program] = prompt + output
            requests.append(
                Request(
                    len(requests),
                    tokens(prompt),
                    output=tokens(output),
                    arrival=0.15 * turn + 0.01 * program,
                    client="ab"[program % 2],
                    program=f"p{program}",
                    turn=turn,
                )
            )
    return tuple(requests)


STREAM = 160
"""Requests that might pass the watched one, in each stream."""
SHARED, OWN, OUTPUT = 1024, 512, 32
"""Tokens of a stream's hot prefix, of a request's own prompt, and of its output."""


def streams() -> Mapping[str, Case]:
    """One request that looks worse than all others in one respect, and a stream of the others.

    It is the last of nine that come at once, or the first where age is what makes it look worse.
    Requests come a little faster than one is served, so that somebody always waits. By name.
    """
    hot = list(range(SHARED))
    serial = SchedulerConfig(max_running=1, chunk_size=65536, max_prefill_tokens=65536)

    def stream(
        name: str,
        worse: dict[str, Any],
        others: Callable[[int], dict[str, Any]] = lambda i: {},
        *,
        prompt: int = OWN,
        output: int = OUTPUT,
        is_hot: bool = False,
        scheduler: SchedulerConfig = serial,
        pages: int = 600,
        watched: int = 8,
    ) -> Case:
        requests: list[Request] = []
        fresh = 10_000
        # A prompt's step, then steps of one token, each of which takes at least four tokens' time;
        # with many slots they overlap.
        service = 0.001 * (OWN + (4 if scheduler.max_running == 1 else 1) * OUTPUT)
        for i in range(STREAM + 1):
            is_watched = i == watched
            length = prompt if is_watched else OWN
            own: Iterable[int] = range(fresh, fresh + length)
            fresh += length
            out = tokens(range(fresh, fresh + (output if is_watched else OUTPUT)))
            fresh += len(out)
            common = {"client": "light" if is_watched else "heavy"}
            requests.append(
                Request(
                    i,
                    tokens([*hot, *own] if is_hot and not is_watched else own),
                    output=out,
                    arrival=0.98 * service * max(0, i - 8),
                    **{**common, **(worse if is_watched else others(i))},
                )
            )
        return Case(name, tuple(requests), CacheConfig(pages), scheduler, watched=watched)

    every = (
        stream("cold among hot", {}, is_hot=True),
        stream("cold among hot, one client", {"client": "heavy"}, is_hot=True),
        stream("long among short", {}, prompt=4 * OWN),
        stream("long among short, one client", {"client": "heavy"}, prompt=4 * OWN),
        stream("old among new", {}, watched=0),
        stream("old among new, one client", {"client": "heavy"}, watched=0),
        stream("a long output", {"expected_output": 320}, _expects, output=320),
        stream("a short output", {"expected_output": 4}, _expects, output=4),
        stream("low priority", {}, lambda i: {"priority": 1}),
        stream("priority of a larger number", {"priority": 1}),
        stream("no deadline", {}, lambda i: {"deadline": 0.5 * i}),
        stream("among newcomers", {}, lambda i: {"client": f"n{i}"}),
        stream("a small weight", {"weight": 0.25}, lambda i: {"weight": 1.0}),
        stream("no program", {}, lambda i: {"program": f"p{i}"}),
        stream("a late turn", {"program": "long", "turn": 9}, lambda i: {"program": f"p{i}"}),
        stream(
            "large among small",
            {},
            prompt=7 * OWN,
            scheduler=SchedulerConfig(max_running=8, chunk_size=8192),
            pages=(8 * OWN) // 16,
        ),
    )
    return {case.name: case for case in every}


def _expects(i: int) -> dict[str, Any]:
    return {"expected_output": OUTPUT}
