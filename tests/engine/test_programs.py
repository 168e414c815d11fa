"""LM programs on a real model: they hear what it said, and the simulator decides alike."""

from __future__ import annotations

import numpy as np
import pytest

from testbed.core.config import CacheConfig, SchedulerConfig
from testbed.core.program import Body, Fork, Gen, GenRefused, Join, Program, ProgramRunner, Sleep
from testbed.core.source import ClosedLoop
from testbed.engine.engine import Engine
from testbed.engine.loop import EngineRun
from testbed.policies import registry
from testbed.sim.recorded import replay
from tests.core.building import tokens_of
from tests.engine.building import Models, ScriptedExecutor, some_requests
from tests.engine.test_loop import run_loop

CACHE = CacheConfig(num_pages=90, page_size=4)
SCHEDULER = SchedulerConfig(max_running=6, chunk_size=16)


def chat(number: int) -> Body:
    context = tokens_of([1, 2, 3, 4, 5, 6, 7, 8, 10 + number])
    for turn in range(3):
        answer = yield Gen(context, max_new_tokens=6)
        context = np.concatenate((context, answer, tokens_of([100 + turn])))
        yield Sleep(0.0 if number % 2 else 0.01)
    return context


def tree(number: int) -> Body:
    prefix = tokens_of(range(20 + number, 60 + number))

    def branch(token: int) -> Body:
        return (yield Gen(np.append(prefix, np.int32(token)), max_new_tokens=4))

    handles = yield Fork([branch(token) for token in (7, 8, 9)], prefix)
    answers = yield Join(handles)
    yield Gen(np.concatenate((prefix, *answers)), max_new_tokens=5)


def programs() -> list[Program]:
    bodies = (chat, tree)
    return [Program(n, lambda n=n: bodies[n % 2](n), name="p") for n in range(8)]


def check_replay(run: EngineRun) -> None:
    again = replay(
        run.added,
        run.measured,
        cache=CACHE,
        scheduler=SCHEDULER,
        policy=registry.scheduling("lpm"),
        eviction=registry.eviction("lru"),
    )
    assert (again.diverged, run.log.first_difference(again.log)) == (None, None)
    assert again.outputs.keys() == run.outputs.keys()


@pytest.mark.parametrize("concurrency", [None, 3])
def test_programs_replay_with_equal_decisions(models: Models, concurrency: int | None) -> None:
    runner = ProgramRunner(programs(), concurrency)
    run = Engine(models["tiny-llama"]).run(
        runner,
        cache=CACHE,
        scheduler=SCHEDULER,
        policy=registry.scheduling("lpm"),
        eviction=registry.eviction("lru"),
    )
    assert runner.ended == 8
    # Three turns a chat; a hint, three branches and what they come to, a tree.
    assert len(run.outputs) == 4 * 3 + 4 * 5
    check_replay(run)


def test_a_chat_s_next_prompt_holds_what_the_model_said(models: Models) -> None:
    runner = ProgramRunner([Program(0, lambda: chat(0))])
    run = Engine(models["tiny-llama"]).run(
        runner,
        cache=CACHE,
        scheduler=SCHEDULER,
        policy=registry.scheduling("fcfs"),
        eviction=registry.eviction("lru"),
    )
    first, second, third = run.added["prompt"]
    assert second.tolist() == [*first.tolist(), *run.outputs[0].tolist(), 100]
    assert third.tolist() == [*second.tolist(), *run.outputs[1].tolist(), 101]
    # Nothing else wants the pool: all but the last of what was computed is found again.
    columns = run.record.requests
    whole_pages = [0, (len(first) + 5) // 4 * 4, (len(second) + 5) // 4 * 4]
    assert columns["cached_tokens"].tolist() == whole_pages


def test_what_the_model_refuses_is_thrown_into_the_program() -> None:
    heard: list[int] = []

    def stubborn() -> Body:
        for _ in range(2):
            try:
                yield Gen(np.zeros(390, dtype=np.int32), max_new_tokens=12)
            except GenRefused as refusal:
                heard.append(refusal.args[0])
        yield Gen(tokens_of([1, 2]), max_new_tokens=2)

    run = run_loop(ScriptedExecutor(), ProgramRunner([Program(0, stubborn)]))
    assert heard == [0, 1]
    assert run.record.requests["status"].tolist() == ["refused", "refused", "finished"]


def test_a_closed_loop_never_has_more_in_service() -> None:
    requests = some_requests(10, seed=1)
    run = run_loop(ScriptedExecutor(), ClosedLoop(requests, concurrency=2))
    assert len(run.outputs) == 10
    assert int((run.record.steps["running"] + run.record.steps["waiting"]).max()) == 2
