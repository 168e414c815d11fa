"""Make a failing case as small as it still fails (delta debugging), and write it as a script."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from functools import partial
from typing import Any

from testbed.conformance.case import Case
from testbed.conformance.subject import Subject
from testbed.core.config import CacheConfig, SchedulerConfig
from testbed.core.request import Request

Fails = Callable[[Case], bool]
"""Whether a case fails in the way that is being looked for."""
Change = Callable[[Case], Case]
"""Makes a case simpler; ValueError where that is no case."""


def shrink(case: Case, fails: Fails, budget: int = 300) -> Case:
    """The smallest failing case found with `budget` trials; `case` must fail."""
    trials = _Trials(fails, budget)
    size = None
    while size != (size := _size(case)) and not trials.spent:
        case = _fewer_requests(case, trials)
        case = _simpler(case, trials)
    return case


def _size(case: Case) -> tuple[int, int, int]:
    tokens = sum(len(r.prompt) + r.max_new_tokens for r in case.requests)
    return len(case.requests), tokens, len(case.source())


class _Trials:
    def __init__(self, fails: Fails, budget: int) -> None:
        self._fails = fails
        self._left = budget

    @property
    def spent(self) -> bool:
        return self._left <= 0

    def __call__(self, change: Change, case: Case) -> Case | None:
        """The changed case, if it can be, fails, and there is budget to see it."""
        if self.spent:
            return None
        try:
            case = change(case)
        except ValueError:
            return None
        self._left -= 1
        return case if self._fails(case) else None


def _fewer_requests(case: Case, trials: _Trials) -> Case:
    """Leave out runs of requests, of half the case at first, of one at last."""
    length = len(case.requests) // 2
    while length:
        start = 0
        while start < len(case.requests) and len(case.requests) > length:
            smaller = trials(_without(start, start + length), case)
            if smaller is None:
                start += length
            else:
                case = smaller
        length //= 2
    return case


def _simpler(case: Case, trials: _Trials) -> Case:
    for change in _changes(case):
        case = trials(change, case) or case
    return case


def _changes(case: Case) -> Iterator[Change]:
    """Everything to try once, each on what the earlier ones left."""
    yield partial(replace, replicas=1)
    yield partial(replace, delays=False, staleness=0.0)
    yield from (_reset("scheduler", f.name, f.default) for f in fields(SchedulerConfig))
    yield from (
        _reset("cache", f.name, f.default) for f in fields(CacheConfig) if f.name != "num_pages"
    )
    yield partial(_each, arrival=0.0)
    for field in fields(Request):
        if field.name not in ("id", "prompt", "output", "max_new_tokens", "arrival"):
            default: Any = field.default
            yield partial(_each, **{field.name: default})
    for place, request in enumerate(case.requests):
        for prompt in (request.prompt[:1], request.prompt[: len(request.prompt) // 2]):
            if len(prompt):
                yield _edit(place, prompt=prompt)
        if request.output is not None:
            for output in (request.output[:1], request.output[: len(request.output) // 2]):
                if len(output):
                    yield _edit(place, output=output, max_new_tokens=len(output))


def _without(start: int, end: int) -> Change:
    return lambda case: replace(case, requests=case.requests[:start] + case.requests[end:])


def _reset(part: str, name: str, value: Any) -> Change:
    return lambda case: replace(case, **{part: replace(getattr(case, part), **{name: value})})


def _each(case: Case, **changes: Any) -> Case:
    return replace(case, requests=tuple(replace(r, **changes) for r in case.requests))


def _edit(place: int, **changes: Any) -> Change:
    def edited(case: Case) -> Case:
        requests = list(case.requests)
        requests[place] = replace(requests[place], **changes)
        return replace(case, requests=tuple(requests))

    return edited


def script(check: str, case: Case | str, subject: Subject, options: str = "") -> str:
    """Python that shows the failure; a case that is a name is the name of a stream.

    options: of `recheck`, as source, for such a case.
    """
    policy = f"from {subject.policy.__module__} import {subject.policy.__name__}"
    if isinstance(case, str):
        call = f"recheck({check!r}, {case!r}, {subject.call}{options})"
        return f"from testbed.conformance import recheck\n{policy}\n\n{call}"
    source = case.source()
    configs = [name for name in ("CacheConfig", "SchedulerConfig") if f"{name}(" in source]
    return "\n".join(
        (
            "from testbed.conformance import Case, recheck, tokens",
            f"from testbed.core.config import {', '.join(configs)}",
            "from testbed.core.request import Request",
            policy,
            "",
            f"case = {source}",
            f"recheck({check!r}, case, {subject.call})",
        )
    )
