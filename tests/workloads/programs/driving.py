"""Runs programs without a backend, in an order of one's own, and tells what they asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from testbed.core.program import Program, ProgramRunner
from testbed.core.request import Request, Tokens
from testbed.metrics.bounds import sharing_bound
from testbed.metrics.prompt_paths import prompt_paths

Answered = Callable[[Request], Tokens | None]


def scripted(request: Request) -> Tokens | None:
    return request.output


def drive(
    family: Any,
    *,
    concurrency: int | None = None,
    answered: Answered = scripted,
    seed: int | None = None,
) -> list[Request]:
    """All requests, served one at a time; seed: in a random order, else first come first served.

    concurrency: of programs. answered: what each request is answered, or None to refuse it.
    """
    programs: list[Program] = list(family)
    assert len(programs) == len(family)
    runner = ProgramRunner(programs, concurrency, family.hints)
    random = None if seed is None else np.random.default_rng(seed)
    waiting: list[Request] = []
    asked: list[Request] = []
    while (time := runner.next_time) is not None or waiting:
        due = runner.take(1e6 if time is None else max(time, 1e6))
        waiting += due
        asked += due
        if not waiting:
            continue
        request = waiting.pop(0 if random is None else int(random.integers(len(waiting))))
        runner.left(request.id, answered(request), 1e6)
    assert runner.ended == runner.started == len(programs)
    return asked


def prompts(requests: list[Request]) -> list[list[int]]:
    return [request.prompt.tolist() for request in requests]


def answers(requests: list[Request]) -> list[list[int]]:
    return [request.output.tolist() for request in requests if request.output is not None]


def shared_tokens(requests: list[Request], *, cache_outputs: bool = False) -> int:
    """Prompt tokens that an endless cache would find, token by token, one request at a time."""
    paths = prompt_paths(requests, 1, min_computed_tokens=0, cache_outputs=cache_outputs)
    return sharing_bound(paths).hit_tokens
