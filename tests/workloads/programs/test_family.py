"""What holds for every family of programs."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.core.request import Request
from testbed.workloads import programs
from testbed.workloads.programs import ChatPrograms, ProgramFamily
from tests.core.building import tokens_of

from .driving import answers, drive, prompts, shared_tokens

FAMILIES: list[type[Any]] = [
    family
    for family in map(programs.__dict__.get, programs.__all__)
    if isinstance(family, type) and issubclass(family, ProgramFamily) and family != ProgramFamily
]
families = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)

Asked = dict[str, list[tuple[list[int], list[int]]]]


def by_program(requests: list[Request]) -> Asked:
    """Prompts and answers of each program, in an order that does not tell when they ran."""
    asked: Asked = defaultdict(list)
    for prompt, answer, request in zip(prompts(requests), answers(requests), requests, strict=True):
        assert request.program is not None
        asked[request.program].append((prompt, answer))
    return {program: sorted(pairs) for program, pairs in asked.items()}


@families
def test_programs_run_to_their_end(family: type[Any]) -> None:
    requests = drive(family(num_programs=3))
    assert {request.program for request in requests} == {
        f"{family(num_programs=3).name}-{i}" for i in range(3)
    }
    assert all(request.max_new_tokens >= 1 for request in requests)


@families
@settings(max_examples=8)
@given(order=st.integers(0, 100), concurrency=st.sampled_from([1, 2, None]), seed=st.integers(0, 9))
def test_what_a_program_asks_does_not_depend_on_when_it_runs(
    family: type[Any], order: int, concurrency: int | None, seed: int
) -> None:
    one = drive(family(num_programs=3, seed=seed), concurrency=1)
    other = drive(family(num_programs=3, seed=seed), concurrency=concurrency, seed=order)
    assert by_program(one) == by_program(other)


@families
def test_more_programs_leave_the_first_ones_as_they_were(family: type[Any]) -> None:
    # Whose subject depends on how many there are is left out.
    extra = {"order": "shuffled"} if family is programs.FewShotPrograms else {}
    few = by_program(drive(family(num_programs=2, **extra)))
    many = by_program(drive(family(num_programs=4, **extra)))
    assert {program: many[program] for program in few} == few


@families
def test_seeds_differ(family: type[Any]) -> None:
    one, other = (by_program(drive(family(num_programs=3, seed=s))) for s in (0, 1))
    assert one != other


@families
def test_a_vocabulary_holds_every_token(family: type[Any]) -> None:
    requests = drive(family(num_programs=2, vocab=50))
    assert all(0 <= request.prompt.min() <= request.prompt.max() < 50 for request in requests)
    assert all(max(answer) < 50 for answer in answers(requests))


@families
def test_a_model_may_answer_and_is_refused_without_harm(family: type[Any]) -> None:
    """No script: the answers are somebody else's, of another length; some requests fail."""

    def answered(request: Request) -> Any:
        assert request.output is None or len(request.output) == 1
        return None if request.id % 5 == 4 else tokens_of([7] * min(2, request.max_new_tokens))

    requests = drive(family(num_programs=4, scripted=False), answered=answered)
    assert len(requests) >= 4


@families
def test_salted_requests_share_nothing(family: type[Any]) -> None:
    shared = drive(family(num_programs=3, hints=False))
    alone = drive(family(num_programs=3, hints=False, unshared=1.0))
    assert shared_tokens(alone) == 0
    assert sum(len(r.prompt) for r in alone) == sum(len(r.prompt) for r in shared)


def test_a_share_of_requests_may_be_salted() -> None:
    requests = drive(ChatPrograms(num_programs=250, turns=4, unshared=0.25, system_tokens=1))
    own = np.mean([prompt[0] != 0 for prompt in prompts(requests)])
    assert own == pytest.approx(0.25, abs=0.04)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"num_programs": 0}, "ChatPrograms.num_programs=0: a whole number of at least 1"),
        ({"unshared": 1.5}, "ChatPrograms.unshared=1.5: a number from 0 to 1"),
        ({"hints": 1}, "ChatPrograms.hints=1: true or false"),
        ({"scripted": None}, "ChatPrograms.scripted=None: true or false"),
        ({"vocab": 1}, "ChatPrograms.vocab=1: a whole number from 2"),
        ({"seed": -1}, "ChatPrograms.seed=-1: a whole number of at least 0"),
        ({"num_programs": 2_000_000}, "4096000000 distinct prompt tokens are asked for"),
    ],
)
def test_bad_parameters_are_named(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ChatPrograms(**changed)
