"""LM programs: plain generators that ask for text, fork, join and sleep, and their one runner.

A body is a generator. It yields what it wants and gets the result as the value of the yield::

    def chat(turns):
        context = system
        for question in turns:
            answer = yield Gen(concatenate(context, question), max_new_tokens=200)
            context = concatenate(context, question, answer)
            yield Sleep(30.0)

The runner is a state machine like everything in the core: `now` is an argument. Whoever drives it
submits what take() returns and reports what left.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf
from typing import Any, NamedTuple, TypeAlias

from testbed.core.request import Request, Tokens
from testbed.core.source import RequestSource


class Gen(NamedTuple):
    """Have tokens generated; the yield's value is the output, int32 tokens.

    prompt: the whole prompt. output: what the model will say, where it is known in advance.
    max_new_tokens: the limit; the length of the output by default.
    """

    prompt: Tokens
    output: Tokens | None = None
    max_new_tokens: int = 0


class Fork(NamedTuple):
    """Start bodies side by side; the yield's value is a list of their handles, for Join.

    prefix: tokens that the branches' prompts begin with. If the runner sends hints, it is computed
    first, and the branches start when it is cached (SGLang's frontend does so).
    """

    bodies: Sequence[Body]
    prefix: Tokens | None = None


class Join(NamedTuple):
    """Wait until all branches have ended; the yield's value is a list of what they returned."""

    handles: Sequence[Branch]


class Sleep(NamedTuple):
    """Let so many seconds pass: a person thinks, a tool runs."""

    seconds: float


Wish: TypeAlias = Gen | Fork | Join | Sleep
Body: TypeAlias = Generator[Wish, Any, Any]


class GenRefused(Exception):
    """Thrown into a body whose Gen was turned away; a body that does not catch it ends there."""


@dataclass(frozen=True)
class Program:
    """A body to run, and what its requests have in common.

    body: makes a new generator, so that a program can run again. arrival: when it starts, seconds
    since the start of the run; with a closed loop, not before.
    """

    id: int
    body: Callable[[], Body]
    name: str = "program"
    arrival: float = 0.0
    client: str = "default"
    weight: float = 1.0
    priority: int = 0
    namespace: str = ""


@dataclass(eq=False)
class Branch:
    """One body that runs: the program's own, or one that it forked."""

    body: Body
    program: Program
    is_root: bool = False
    waits_for: int = 0
    """Branches it has joined that have not ended."""
    joined: Sequence[Branch] = ()
    joiners: list[Branch] = field(default_factory=list)
    ended: bool = False
    value: Any = None


@dataclass(eq=False)
class _Hint:
    """Branches that start when their common prefix is cached, and who forked them."""

    parent: Branch
    branches: list[Branch]


class ProgramRunner(RequestSource):
    """Runs programs: says which requests are due, and goes on when they have left.

    programs: in order of arrival. concurrency: at most so many at a time, the next one starting
    when one ends (a closed loop); None starts each at its arrival. hints: send the common prefix of
    a Fork ahead.

    Request ids count from 0 in the order of submission. Request.program is "name-id", turn counts
    the program's requests from 0. Raises ValueError for programs out of order, and TypeError,
    naming the program, for a body that yields something else than a wish.
    """

    def __init__(
        self,
        programs: Iterable[Program],
        concurrency: int | None = None,
        hints: bool = True,
    ) -> None:
        if concurrency is not None and concurrency < 1:
            raise ValueError(f"concurrency={concurrency}: at least 1, or None, is needed")
        self.started = 0
        self._ended = 0
        self._programs: Iterator[Program] = iter(programs)
        self._upcoming = next(self._programs, None)
        self._concurrency = inf if concurrency is None else concurrency
        self._hints = hints
        self._sleeping: list[tuple[float, int, Branch]] = []
        self._order = 0
        self._gens: dict[int, Branch | _Hint] = {}
        self._turns: dict[int, int] = {}
        self._due: list[Request] = []
        self._num_requests = 0
        self._last_arrival = 0.0

    @property
    def ended(self) -> int:
        """Programs that have come to their end."""
        return self._ended

    @property
    def next_time(self) -> float | None:
        """When something is due that does not wait for a request; None if nothing is."""
        if self._due:
            return self._due[0].arrival
        time = min(self._next_wake, self._next_start)
        return None if time == inf else time

    def take(self, now: float) -> list[Request]:
        """The requests that are due by `now`, which never goes back; their arrival is `now`."""
        while min(self._next_wake, self._next_start) <= now:
            if self._next_wake <= self._next_start:
                self._resume(heappop(self._sleeping)[2], None, now)
            else:
                self._start(now)
        taken, self._due = self._due, []
        return taken

    def left(self, request_id: int, output: Tokens | None, now: float) -> None:
        """A request finished with this output, or was refused (None)."""
        waiting = self._gens.pop(request_id)
        if isinstance(waiting, _Hint):
            # A hint that was refused only means that nothing is cached.
            self._begin(waiting, now)
        elif output is None:
            self._advance(waiting, lambda: waiting.body.throw(GenRefused(request_id)), now)
        else:
            self._resume(waiting, output, now)

    @property
    def _next_wake(self) -> float:
        return self._sleeping[0][0] if self._sleeping else inf

    @property
    def _next_start(self) -> float:
        if self._upcoming is None or self.started - self._ended >= self._concurrency:
            return inf
        return self._upcoming.arrival

    def _start(self, now: float) -> None:
        program = self._upcoming
        assert program is not None
        if program.arrival < self._last_arrival:
            raise ValueError(
                f"program {program.id}: arrival {program.arrival} is before the one ahead of it"
            )
        self._last_arrival = program.arrival
        self._upcoming = next(self._programs, None)
        self.started += 1
        self._turns[program.id] = 0
        self._resume(Branch(program.body(), program, is_root=True), None, now)

    def _resume(self, branch: Branch, value: Any, now: float) -> None:
        self._advance(branch, lambda: branch.body.send(value), now)

    def _advance(self, branch: Branch, step: Callable[[], Wish], now: float) -> None:
        try:
            wish = step()
        except StopIteration as end:
            self._end(branch, end.value, now)
            return
        except GenRefused:
            self._end(branch, None, now)
            return
        match wish:
            case Gen():
                self._submit(branch.program, wish, branch, now)
            case Sleep(seconds):
                if not 0 <= seconds < inf:
                    raise ValueError(
                        f"program {branch.program.id}: Sleep({seconds}): seconds from 0 are needed"
                    )
                self._order += 1
                heappush(self._sleeping, (now + seconds, self._order, branch))
            case Fork(bodies, prefix):
                hint = _Hint(branch, [Branch(body, branch.program) for body in bodies])
                if prefix is not None and self._hints and bodies:
                    # Its one token is never read: what it says is no matter.
                    self._submit(branch.program, Gen(prefix, prefix[-1:]), hint, now)
                else:
                    self._begin(hint, now)
            case Join(handles):
                branch.joined = handles
                pending = [handle for handle in dict.fromkeys(handles) if not handle.ended]
                branch.waits_for = len(pending)
                for handle in pending:
                    handle.joiners.append(branch)
                if not pending:
                    self._resume(branch, [handle.value for handle in handles], now)
            case _:
                raise TypeError(
                    f"program {branch.program.id} yielded {wish!r}: Gen, Fork, Join or Sleep "
                    "is needed"
                )

    def _begin(self, hint: _Hint, now: float) -> None:
        for branch in hint.branches:
            self._resume(branch, None, now)
        self._resume(hint.parent, hint.branches, now)

    def _end(self, branch: Branch, value: Any, now: float) -> None:
        branch.ended = True
        branch.value = value
        for joiner in branch.joiners:
            joiner.waits_for -= 1
            if not joiner.waits_for:
                self._resume(joiner, [handle.value for handle in joiner.joined], now)
        if branch.is_root:
            self._ended += 1

    def _submit(self, program: Program, gen: Gen, waiting: Branch | _Hint, now: float) -> None:
        request = Request(
            id=self._num_requests,
            prompt=gen.prompt,
            output=gen.output,
            max_new_tokens=gen.max_new_tokens,
            arrival=now,
            client=program.client,
            weight=program.weight,
            priority=program.priority,
            namespace=program.namespace,
            program=f"{program.name}-{program.id}",
            turn=self._turns[program.id],
        )
        self._num_requests += 1
        self._turns[program.id] += 1
        self._gens[request.id] = waiting
        self._due.append(request)
