"""Sources in the simulated world: what reacts to answers, and what does not, are served alike."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.core.config import CacheConfig
from testbed.core.program import Body, Fork, Gen, GenRefused, Join, Program, ProgramRunner, Sleep
from testbed.core.source import ClosedLoop, OpenLoop
from testbed.policies import registry
from testbed.sim.sight import Sight
from tests.core.building import make_request, tokens_of
from tests.sim.test_sight import Curious
from tests.sim.worlds import World, plain_run, same, table, worlds


class Watched(OpenLoop):
    """Claims that it may react, so that the world has to be ready for it."""

    reacts = True


@settings(max_examples=200)
@given(worlds(), st.sampled_from([0.0, 0.3, 0.5, 1.0, 7.0]))
def test_being_ready_for_answers_changes_nothing(world: World, period: float) -> None:
    first = world.run(routing=Curious(), staleness=period)
    source = Watched(world.requests)
    second = world.run(requests=source, routing=Curious(), staleness=period)
    assert same(first, second) == ""
    assert source.ended == len(world.requests)


def gen(prompt: list[int], output: list[int]) -> Gen:
    return Gen(tokens_of(prompt), tokens_of(output))


def test_a_chat_in_time() -> None:
    """A second a token: 3 + 1 prefill and decode, think 10, then one new token and one decode."""

    def chat() -> Body:
        answer = yield gen([1, 2, 3], [8, 9])
        yield Sleep(10.0)
        # All but the last output token is cached.
        yield gen([1, 2, 3, *answer.tolist(), 4], [5, 6])

    rows = table(plain_run(ProgramRunner([Program(0, chat, arrival=1.0)])).requests)
    assert [(r["arrival_s"], r["first_token_s"], r["finish_s"]) for r in rows] == [
        (1.0, 4.0, 5.0),
        (15.0, 17.0, 18.0),
    ]
    assert [(r["program"], r["turn"], r["cached_tokens"]) for r in rows] == [
        ("program-0", 0, 0),
        ("program-0", 1, 4),
    ]


def forking() -> Body:
    def branch(token: int) -> Body:
        return (yield gen([1, 2, 3, 4, token], [token]))

    handles = yield Fork([branch(7), branch(8)], prefix=tokens_of([1, 2, 3, 4]))
    answers = yield Join(handles)
    yield gen([1, 2, 3, 4, *np.concatenate(answers).tolist()], [0])


def test_a_hint_lets_branches_share_what_they_would_compute_twice() -> None:
    def cached(hints: bool) -> list[int]:
        runner = ProgramRunner([Program(0, forking)], hints=hints)
        record = plain_run(runner, cache=CacheConfig(100, 1))
        return sorted(record.requests["cached_tokens"].tolist())

    # The hint finds nothing, the branches the prefix; the last prompt goes on from branch 7.
    assert cached(hints=True) == [0, 4, 4, 5]
    assert cached(hints=False) == [0, 0, 5]


def test_an_answer_may_be_followed_at_once_while_others_run() -> None:
    """What is asked at a step's end joins after the step that begins there."""

    def two() -> Body:
        yield gen([1], [1])
        yield gen([2], [2])

    def long() -> Body:
        yield gen([9], [1, 1, 1, 1])

    record = plain_run(ProgramRunner([Program(0, two), Program(1, long)]))
    rows = {(r["program"], r["turn"]): r for r in table(record.requests)}
    # Both prefill until 2; one decodes alone until 3; then the newcomer's token joins it.
    assert rows["program-0", 1]["arrival_s"] == 2.0
    assert rows["program-0", 1]["admitted_s"] == 3.0
    assert rows["program-0", 1]["finish_s"] == 5.0


def test_a_refused_request_is_reported_to_its_program() -> None:
    heard: list[str] = []

    def stubborn() -> Body:
        try:
            yield gen(list(range(200)), [1])
        except GenRefused:
            heard.append("refused")
        yield gen([1], [1])

    record = plain_run(ProgramRunner([Program(0, stubborn)]))
    assert heard == ["refused"]
    assert record.requests["status"].tolist() == ["refused", "finished"]


def test_a_closed_loop_keeps_so_many_in_service() -> None:
    requests = [make_request(n, [n], output=3) for n in range(5)]
    heard: list[int] = []
    record = plain_run(ClosedLoop(requests, concurrency=1), progress=heard.append)
    # One token of prefill, two of decode.
    assert record.requests["arrival_s"].tolist() == [0.0, 3.0, 6.0, 9.0, 12.0]
    assert record.requests["finish_s"].tolist() == [3.0, 6.0, 9.0, 12.0, 15.0]
    assert heard == [1, 2, 3, 4, 5]


def test_the_simulator_has_to_be_told_what_the_model_says() -> None:
    def open_ended() -> Body:
        yield Gen(tokens_of([1]), max_new_tokens=5)

    with pytest.raises(ValueError, match=r"request 0 of program-0: output=None; a simulation has"):
        plain_run(ProgramRunner([Program(0, open_ended)]))


def test_the_future_of_what_reacts_is_not_known() -> None:
    with pytest.raises(ValueError, match="eviction=Belady: which requests come is not known ahead"):
        plain_run(ProgramRunner([]), eviction=lambda: registry.eviction("belady"))


def test_programs_that_never_end_are_an_error() -> None:
    def parent() -> Body:
        own: list[Any] = []

        def endless() -> Body:
            yield gen([1], [1])
            yield Join(own)

        own += yield Fork([endless()])
        yield Join(own)

    with pytest.raises(ValueError, match="wait for branches that never end"):
        plain_run(ProgramRunner([Program(0, parent)]))


def test_a_short_staleness_costs_no_look_that_nobody_sees() -> None:
    """Two looks before each event at the most, not a million a second."""
    looks = 0
    own = Sight.look

    def counted(sight: Sight) -> None:
        nonlocal looks
        looks += 1
        own(sight)

    def chat() -> Body:
        yield gen([1, 2, 3], [1, 2, 3])
        yield Sleep(100.0)
        yield gen([1, 2, 3, 4], [1])

    with mock.patch.object(Sight, "look", counted):
        plain_run(ProgramRunner([Program(0, chat)]), staleness=1e-6, replicas=2)
    assert 0 < looks < 50
