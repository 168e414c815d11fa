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
from functools import partial
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


Operation: TypeAlias = Gen | Fork | Join | Sleep
Body: TypeAlias = Generator[Operation, Any, Any]


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

    @property
    def label(self) -> str:
        """What its requests are marked with, and errors call it."""
        return f"{self.name}-{self.id}"


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
    the program's requests from 0. Raises ValueError for programs out of order, and TypeError or
    ValueError, naming the program, for a body that yields what is no operation or cannot be done.
    """

    def __init__(
        self,
        programs: Iterable[Program],
        concurrency: int | None = None,
        hints: bool = True,
    ) -> None:
        if concurrency is not None and (type(concurrency) is not int or concurrency < 1):
            raise ValueError(
                f"concurrency={concurrency}: a whole number from 1, or None, is needed"
            )
        self.started = 0
        self._ended = 0
        self._programs: Iterator[Program] = iter(programs)
        self._last_arrival = 0.0
        self._upcoming = self._read()
        self._concurrency = inf if concurrency is None else concurrency
        self._hints = hints
        self._sleeping: list[tuple[float, int, Branch]] = []
        self._order = 0
        self._gens: dict[int, Branch | _Hint] = {}
        self._turns: dict[int, int] = {}
        self._due: list[Request] = []
        self._num_requests = 0

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

    @property
    def unfinished(self) -> str | None:
        """Which programs have not come to their end, and which never began."""
        if self._upcoming is None and self.started == self._ended:
            return None
        running = self.started - self._ended
        waiting = "" if self._upcoming is None else f"; {self._upcoming.label} never began"
        return f"{running} programs wait for branches that never end{waiting}"

    def take(self, now: float) -> list[Request]:
        """The requests that are due by `now`, which never goes back; their arrival is `now`."""
        while min(self._next_wake, self._next_start) <= now:
            if self._next_wake <= self._next_start:
                branch = heappop(self._sleeping)[2]
            else:
                branch = self._started()
            self._run([_Step(branch, partial(branch.body.send, None))], now)
        taken, self._due = self._due, []
        return taken

    def left(self, request_id: int, output: Tokens | None, now: float) -> None:
        """A request finished with this output, or was refused (None)."""
        waiting = self._gens.pop(request_id)
        if isinstance(waiting, _Hint):
            # A hint that was refused only means that nothing is cached.
            self._run(_beginning(waiting), now)
        elif output is None:
            self._run([_Step(waiting, partial(waiting.body.throw, GenRefused(request_id)))], now)
        else:
            self._run([_Step(waiting, partial(waiting.body.send, output))], now)

    @property
    def _next_wake(self) -> float:
        return self._sleeping[0][0] if self._sleeping else inf

    @property
    def _next_start(self) -> float:
        if self._upcoming is None or self.started - self._ended >= self._concurrency:
            return inf
        return self._upcoming.arrival

    def _read(self) -> Program | None:
        """The next program, checked."""
        program = next(self._programs, None)
        if program is not None:
            if not 0 <= program.arrival < inf:
                raise ValueError(
                    f"program {program.id}: arrival {program.arrival}: seconds from 0 are needed"
                )
            if program.arrival < self._last_arrival:
                raise ValueError(
                    f"program {program.id}: arrival {program.arrival} is before the one ahead of it"
                )
            self._last_arrival = program.arrival
        return program

    def _started(self) -> Branch:
        program = self._upcoming
        assert program is not None
        self._upcoming = self._read()
        self.started += 1
        self._turns[program.id] = 0
        return Branch(_checked(program.body(), program), program, is_root=True)

    def _run(self, ready: list[_Step], now: float) -> None:
        """Let bodies go on until all wait for something. ready: a stack, so that branches start in
        their order, each as far as it gets, and before what forked them goes on."""
        while ready:
            branch, step = ready.pop()
            try:
                operation = step()
            except StopIteration as end:
                ready += reversed(self._end(branch, end.value))
            except GenRefused:
                ready += reversed(self._end(branch, None))
            except Exception as error:
                error.add_note(f"in the body of {branch.program.label}")
                raise
            else:
                ready += self._do(branch, operation, now)

    def _do(self, branch: Branch, operation: Operation, now: float) -> list[_Step]:
        """Begin an operation; returns what can go on at once, the last first."""
        label = branch.program.label
        match operation:
            case Gen():
                self._submit(branch.program, operation, branch, now)
            case Sleep(seconds):
                if not isinstance(seconds, int | float) or not 0 <= seconds < inf:
                    raise ValueError(f"{label}: Sleep({seconds!r}): seconds from 0 are needed")
                self._order += 1
                heappush(self._sleeping, (now + seconds, self._order, branch))
            case Fork(bodies, prefix):
                return self._fork(branch, list(bodies), prefix, now)
            case Join(handles):
                branch.joined = list(handles)
                for handle in branch.joined:
                    if not isinstance(handle, Branch):
                        raise TypeError(f"{label}: Join of {handle!r}: handles of Fork are needed")
                pending = [handle for handle in dict.fromkeys(branch.joined) if not handle.ended]
                branch.waits_for = len(pending)
                for handle in pending:
                    handle.joiners.append(branch)
                if not pending:
                    return [_told(branch)]
            case _:
                raise TypeError(
                    f"program {branch.program.id} yielded {operation!r}: Gen, Fork, Join or Sleep "
                    "is needed"
                )
        return []

    def _fork(
        self, parent: Branch, bodies: list[Body], prefix: Tokens | None, now: float
    ) -> list[_Step]:
        program = parent.program
        if len(set(bodies)) < len(bodies):
            raise ValueError(f"{program.label}: Fork of one generator twice; each runs once")
        if prefix is not None and not len(prefix):
            raise ValueError(f"{program.label}: Fork.prefix is empty; tokens or None are needed")
        branches = [Branch(_checked(one, program), program) for one in bodies]
        hint = _Hint(parent, branches)
        if prefix is None or not self._hints or not branches:
            return _beginning(hint)
        # Its one token is never read: what it says is no matter.
        self._submit(program, Gen(prefix, prefix[-1:]), hint, now)
        return []

    def _end(self, branch: Branch, value: Any) -> list[_Step]:
        """A body has returned; what waited for it alone can go on."""
        branch.ended = True
        branch.value = value
        self._ended += branch.is_root
        for joiner in branch.joiners:
            joiner.waits_for -= 1
        return [_told(joiner) for joiner in branch.joiners if not joiner.waits_for]

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
            program=program.label,
            turn=self._turns[program.id],
        )
        self._num_requests += 1
        self._turns[program.id] += 1
        self._gens[request.id] = waiting
        self._due.append(request)


class _Step(NamedTuple):
    """A body that can go on, and how."""

    branch: Branch
    step: Callable[[], Operation]


def _beginning(hint: _Hint) -> list[_Step]:
    """Branches that start, and then what forked them; the last first."""
    parent = _Step(hint.parent, partial(hint.parent.body.send, hint.branches))
    return [parent, *(_Step(b, partial(b.body.send, None)) for b in reversed(hint.branches))]


def _told(joiner: Branch) -> _Step:
    """A Join whose branches have ended."""
    return _Step(joiner, partial(joiner.body.send, [handle.value for handle in joiner.joined]))


def _checked(body: Any, program: Program) -> Body:
    if not isinstance(body, Generator):
        raise TypeError(f"{program.label}: body {body!r}: a generator is needed")
    return body
