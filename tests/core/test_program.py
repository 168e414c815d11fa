"""Programs, step by step: what is due when, and what their bodies get."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from testbed.core.program import (
    Body,
    Fork,
    Gen,
    GenRefused,
    Join,
    Program,
    ProgramRunner,
    Sleep,
)
from tests.core.building import tokens_of


def gen(*prompt: int, output: int = 1) -> Gen:
    return Gen(tokens_of(prompt), max_new_tokens=output)


def runner_of(*bodies: Callable[[], Body], **options: Any) -> ProgramRunner:
    programs = [Program(n, body) for n, body in enumerate(bodies)]
    return ProgramRunner(programs, **options)


def prompts(runner: ProgramRunner, now: float) -> list[list[int]]:
    return [request.prompt.tolist() for request in runner.take(now)]


def test_a_chat_goes_on_from_what_it_was_told() -> None:
    def chat() -> Body:
        context = tokens_of([1, 2])
        for question in (10, 20):
            context = np.append(context, np.int32(question))
            answer = yield gen(*context.tolist())
            context = np.concatenate((context, answer))
            yield Sleep(5.0)
        return context.tolist()

    runner = runner_of(chat)
    assert runner.next_time == 0.0
    (first,) = runner.take(0.0)
    assert (first.id, first.program, first.turn, first.arrival) == (0, "program-0", 0, 0.0)
    assert first.prompt.tolist() == [1, 2, 10]
    assert runner.next_time is None
    runner.left(0, tokens_of([7]), 3.0)
    assert runner.next_time == 8.0
    assert runner.take(7.9) == []
    (second,) = runner.take(8.0)
    assert second.prompt.tolist() == [1, 2, 10, 7, 20]
    assert (second.id, second.turn, second.arrival) == (1, 1, 8.0)
    runner.left(1, tokens_of([9]), 9.0)
    assert (runner.ended, runner.next_time) == (0, 14.0)
    assert runner.take(14.0) == []
    assert (runner.started, runner.ended, runner.next_time) == (1, 1, None)


def test_programs_start_at_their_arrivals() -> None:
    programs = [
        Program(n, lambda n=n: iter_gen(n), arrival=a) for n, a in enumerate((1.0, 1.0, 4.0))
    ]
    runner = ProgramRunner(programs)
    assert runner.take(0.5) == []
    assert prompts(runner, 1.0) == [[0], [1]]
    assert runner.next_time == 4.0
    assert prompts(runner, 6.0) == [[2]]


def iter_gen(n: int) -> Body:
    yield gen(n)


def test_a_closed_loop_starts_the_next_when_one_ends() -> None:
    runner = runner_of(*[lambda n=n: iter_gen(n) for n in range(4)], concurrency=2)
    assert prompts(runner, 0.0) == [[0], [1]]
    assert runner.next_time is None
    runner.left(1, tokens_of([5]), 2.0)
    # The third could have started at 0; it starts when there is room.
    assert runner.next_time == 0.0
    (third,) = runner.take(2.0)
    assert (third.prompt.tolist(), third.arrival) == ([2], 2.0)


def test_branches_run_side_by_side_and_join_in_their_order() -> None:
    results: list[Any] = []

    def branch(n: int) -> Body:
        output = yield gen(1, n)
        return output.tolist()

    def judge() -> Body:
        handles = yield Fork([branch(2), branch(3)])
        results.append((yield Join(handles)))
        yield gen(9)

    runner = runner_of(judge)
    assert prompts(runner, 0.0) == [[1, 2], [1, 3]]
    runner.left(1, tokens_of([33]), 1.0)
    assert runner.take(1.0) == []
    runner.left(0, tokens_of([22]), 2.0)
    assert results == [[[22], [33]]]
    assert prompts(runner, 2.0) == [[9]]


def test_joining_what_has_ended_does_not_wait() -> None:
    def quick() -> Body:
        return 4
        yield

    def parent() -> Body:
        handles = yield Fork([quick(), quick()])
        assert (yield Join(handles)) == [4, 4]
        assert (yield Join([])) == []
        yield gen(1)

    assert prompts(runner_of(parent), 0.0) == [[1]]


def forked(prefix: list[int]) -> Callable[[], Body]:
    def body() -> Body:
        branches = [iter_gen(n) for n in (1, 2)]
        yield Join((yield Fork(branches, tokens_of(prefix))))

    return body


def test_a_hint_sends_the_common_prefix_ahead() -> None:
    runner = runner_of(forked([5, 6]))
    (hint,) = runner.take(0.0)
    assert (hint.prompt.tolist(), hint.max_new_tokens) == ([5, 6], 1)
    runner.left(hint.id, hint.output, 1.0)
    assert prompts(runner, 1.0) == [[1], [2]]
    assert prompts(runner_of(forked([5, 6]), hints=False), 0.0) == [[1], [2]]


def test_a_refused_hint_only_caches_nothing() -> None:
    runner = runner_of(forked([5, 6]))
    (hint,) = runner.take(0.0)
    runner.left(hint.id, None, 1.0)
    assert prompts(runner, 1.0) == [[1], [2]]


def test_a_refused_gen_ends_the_body_unless_it_is_caught() -> None:
    def stubborn() -> Body:
        try:
            yield gen(1)
        except GenRefused:
            yield gen(2)

    runner = runner_of(lambda: iter_gen(0), stubborn)
    assert prompts(runner, 0.0) == [[0], [1]]
    runner.left(0, None, 1.0)
    assert runner.ended == 1
    runner.left(1, None, 1.0)
    assert prompts(runner, 1.0) == [[2]]


def test_requests_carry_what_the_program_has() -> None:
    program = Program(
        7, lambda: iter_gen(1), "react", 2.0, client="c", weight=3.0, priority=4, namespace="n"
    )
    (request,) = ProgramRunner([program]).take(2.0)
    assert (request.program, request.client, request.weight) == ("react-7", "c", 3.0)
    assert (request.priority, request.namespace) == (4, "n")


def test_a_program_s_body_runs_anew_each_time() -> None:
    program = Program(0, lambda: iter_gen(1))
    assert prompts(ProgramRunner([program]), 0.0) == prompts(ProgramRunner([program]), 0.0) == [[1]]


def test_mistakes_name_the_program() -> None:
    def wrong() -> Body:
        yield 3  # type: ignore[misc]

    with pytest.raises(TypeError, match="program 0 yielded 3: Gen, Fork, Join or Sleep"):
        runner_of(wrong).take(0.0)

    def backwards() -> Body:
        yield Sleep(-1.0)

    with pytest.raises(ValueError, match=r"program-0: Sleep\(-1\.0\): seconds from 0"):
        runner_of(backwards).take(0.0)
    late = [Program(0, lambda: iter_gen(1), arrival=2.0), Program(1, lambda: iter_gen(1))]
    with pytest.raises(ValueError, match=r"program 1: arrival 0\.0 is before the one ahead"):
        ProgramRunner(late).take(3.0)
    with pytest.raises(ValueError, match="concurrency=0"):
        ProgramRunner([], concurrency=0)


def test_no_programs_are_no_requests() -> None:
    runner = ProgramRunner([])
    assert (runner.next_time, runner.take(1e9)) == (None, [])


def test_what_cannot_be_done_names_the_program() -> None:
    def joins(handles: Any) -> Callable[[], Body]:
        def body() -> Body:
            yield Join(handles)

        return body

    def forks(*bodies: Any, prefix: Any = None) -> Callable[[], Body]:
        def body() -> Body:
            yield Fork(bodies, prefix)

        return body

    def sleeps() -> Body:
        yield Sleep("1")  # type: ignore[arg-type]

    one = iter_gen(1)
    for body, error, message in (
        (joins([1]), TypeError, "program-0: Join of 1: handles of Fork are needed"),
        (forks(len), TypeError, "program-0: body <built-in function len>: a generator is needed"),
        (forks(one, one), ValueError, "program-0: Fork of one generator twice"),
        (forks(one, prefix=tokens_of([])), ValueError, "program-0: Fork.prefix is empty"),
        (sleeps, ValueError, "program-0: Sleep.'1'.: seconds from 0 are needed"),
        (lambda: None, TypeError, "program-0: body None: a generator is needed"),
    ):
        with pytest.raises(error, match=message):
            runner_of(body).take(0.0)  # type: ignore[arg-type]


def test_an_error_in_a_body_names_the_program() -> None:
    def broken() -> Body:
        raise KeyError("boom")
        yield

    with pytest.raises(KeyError) as caught:
        runner_of(broken).take(0.0)
    assert caught.value.__notes__ == ["in the body of program-0"]


@pytest.mark.parametrize("arrival", [float("inf"), float("nan"), -1.0])
def test_a_program_starts_at_some_time(arrival: float) -> None:
    with pytest.raises(ValueError, match=r"program 0: arrival .*: seconds from 0 are needed"):
        ProgramRunner([Program(0, lambda: iter_gen(0), arrival=arrival)])


def test_a_join_takes_any_iterable_of_handles() -> None:
    heard: list[Any] = []

    def branch(value: int) -> Body:
        return value
        yield

    def parent() -> Body:
        handles = yield Fork([branch(1), branch(2)])
        heard.append((yield Join(iter(handles))))

    runner_of(parent).take(0.0)
    assert heard == [[1, 2]]


def test_what_never_ends_is_told() -> None:
    """A branch that waits for itself, and a program behind it in a closed loop."""

    def parent() -> Body:
        own: list[Any] = []

        def endless() -> Body:
            yield gen(1)
            yield Join(own)

        own += yield Fork([endless()])
        yield Join(own)

    runner = runner_of(parent, lambda: iter_gen(2), concurrency=1)
    assert runner.unfinished == "0 programs wait for branches that never end; program-0 never began"
    (request,) = runner.take(0.0)
    runner.left(request.id, tokens_of([5]), 1.0)
    assert (runner.next_time, runner.ended) == (None, 0)
    assert runner.unfinished == "1 programs wait for branches that never end; program-1 never began"


def test_programs_of_many_forks_and_joins_need_no_deep_stack() -> None:
    def deep(level: int) -> Body:
        if level:
            yield Join((yield Fork([deep(level - 1)])))

    def wide() -> Body:
        for _ in range(3000):
            yield Join((yield Fork([])))

    runner = runner_of(lambda: deep(3000), wide)
    runner.take(0.0)
    assert (runner.ended, runner.unfinished) == (2, None)
