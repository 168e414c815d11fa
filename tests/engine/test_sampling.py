"""Which tokens may be drawn, how often, and that a draw belongs to its request alone."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from testbed.core.config import CacheConfig, SchedulerConfig
from testbed.core.request import GREEDY, Request, SamplingParams
from testbed.engine.sampling import Place, Sampler
from tests.engine.building import Models, run_engine, some_requests

# Token 2 has probability 1/2, token 0 1/4, tokens 1 and 3 1/8.
LOGITS = torch.tensor([[4.0, 2.0, 8.0, 2.0]]).log()


PROMPT = np.array([1], dtype=np.int32)


def place(id: int, index: int, rule: SamplingParams) -> Place:
    return Place(Request(id, PROMPT, max_new_tokens=100, sampling=rule), index)


def draws(rule: SamplingParams, count: int = 4000) -> Counter[int]:
    """Of the first tokens of so many requests."""
    places = [place(id, 0, rule) for id in range(count)]
    return Counter(Sampler().sample(LOGITS.expand(count, 4), places).tolist())


def check_shares(counts: Counter[int], shares: tuple[float, ...]) -> None:
    total = sum(counts.values())
    for token, share in enumerate(shares):
        # Five standard deviations of a fair draw; the seed is fixed.
        deviation = (total * share * (1 - share)) ** 0.5
        assert abs(counts[token] - total * share) <= 5 * deviation, token


def test_temperature_zero_takes_the_likeliest() -> None:
    assert draws(SamplingParams(), 10) == {2: 10}


@pytest.mark.parametrize(
    ("rule", "weights"),
    [
        (SamplingParams(temperature=1.0), (2, 1, 4, 1)),
        # At temperature 1/2 probabilities are squared, at 2 their roots are taken.
        (SamplingParams(temperature=0.5), (4, 1, 16, 1)),
        (SamplingParams(temperature=2.0), (2**0.5, 1, 2, 1)),
        # What is cut off is shared out among the rest.
        (SamplingParams(temperature=1.0, top_k=2), (2, 0, 4, 0)),
        (SamplingParams(temperature=1.0, top_k=3, seed=9), (2, 1, 4, 0)),
        (SamplingParams(temperature=1.0, top_p=0.7), (2, 0, 4, 0)),
        # Temperature comes first: at 1/2 the likeliest alone has 16/22.
        (SamplingParams(temperature=0.5, top_p=0.7), (0, 0, 16, 0)),
        (SamplingParams(temperature=0.5, top_k=3, top_p=0.8), (4, 0, 16, 0)),
    ],
)
def test_probabilities_are_kept(rule: SamplingParams, weights: tuple[float, ...]) -> None:
    shares = tuple(weight / sum(weights) for weight in weights)
    check_shares(draws(rule), shares)


def test_the_tokens_of_one_request_are_independent_draws() -> None:
    """Also of each other: each of the 16 pairs of neighbours has its product's share."""
    rule = SamplingParams(temperature=1.0, seed=3)
    places = [place(5, index, rule) for index in range(6000)]
    drawn = Sampler().sample(LOGITS.expand(6000, 4), places).tolist()
    check_shares(Counter(drawn), (0.25, 0.125, 0.5, 0.125))
    pairs = Counter(4 * a + b for a, b in zip(drawn[::2], drawn[1::2], strict=True))
    single = (0.25, 0.125, 0.5, 0.125)
    check_shares(pairs, tuple(a * b for a in single for b in single))


@pytest.mark.parametrize("temperature", [1e-3, 1e-30, 1e-300])
def test_a_tiny_temperature_is_greedy(temperature: float) -> None:
    logits = torch.tensor([[3e4, -3e4, 3.0001e4, 0.0]])
    rule = SamplingParams(temperature=temperature)
    drawn = [int(Sampler().sample(logits, [place(id, 0, rule)])[0]) for id in range(40)]
    assert set(drawn) == {2}


@pytest.mark.parametrize(
    ("rule", "possible"),
    [
        (SamplingParams(temperature=1.0, top_k=1), {2}),
        (SamplingParams(temperature=1.0, top_k=2), {2, 0}),
        # Of equal logits the lower id comes first.
        (SamplingParams(temperature=1.0, top_k=3), {2, 0, 1}),
        (SamplingParams(temperature=1.0, top_p=0.1), {2}),
        (SamplingParams(temperature=1.0, top_p=0.5), {2}),
        (SamplingParams(temperature=1.0, top_p=0.6), {2, 0}),
        (SamplingParams(temperature=1.0, top_p=0.8), {2, 0, 1}),
        # Among the top two the likeliest has 2/3.
        (SamplingParams(temperature=1.0, top_k=2, top_p=0.6), {2}),
        (SamplingParams(temperature=1.0, top_k=2, top_p=0.7), {2, 0}),
    ],
)
def test_top_k_and_top_p_cut_the_tail(rule: SamplingParams, possible: set[int]) -> None:
    assert draws(rule).keys() == possible


def test_a_draw_belongs_to_its_request_place_and_seed() -> None:
    logits = torch.zeros(6, 500)
    rule = SamplingParams(temperature=1.0)
    names = [(request, index) for request in (3, 8) for index in range(3)]
    together = Sampler().sample(logits, [place(*name, rule) for name in names]).tolist()
    alone = [int(Sampler().sample(logits[:1], [place(*name, rule)])[0]) for name in names]
    assert together == alone
    assert len(set(together)) > 3
    other = replace(rule, seed=1)
    reseeded = Sampler().sample(logits, [place(*name, other) for name in names]).tolist()
    assert all(a != b for a, b in zip(together, reseeded, strict=True))


def test_requests_of_one_batch_have_rules_of_their_own() -> None:
    sharp, wide = SamplingParams(temperature=1.0, top_k=1), SamplingParams(temperature=5.0)
    drawn = [
        Sampler()
        .sample(LOGITS.expand(3, 4), [place(8, i, wide), place(7, i, sharp), place(1, i, GREEDY)])
        .tolist()
        for i in range(50)
    ]
    assert {row[1] for row in drawn} == {row[2] for row in drawn} == {2}
    assert {row[0] for row in drawn} == {0, 1, 2, 3}


def test_chunks_and_preemption_do_not_change_what_is_drawn(models: Models) -> None:
    rules = [
        SamplingParams(temperature=0.8, top_p=0.9, seed=11),
        GREEDY,
        SamplingParams(temperature=1.2, top_k=40),
    ]
    requests = [replace(r, sampling=rules[r.id % 3]) for r in some_requests(10)]
    roomy = CacheConfig(num_pages=160, page_size=4)
    plain = run_engine(models["tiny-llama"], requests, roomy, SchedulerConfig(max_running=1))
    tight = SchedulerConfig(
        chunk_size=16, reserve="ratio", reserve_ratio=0.01, reserve_ratio_floor=0.01
    )
    small = CacheConfig(num_pages=26, page_size=4)
    pressed = run_engine(models["tiny-llama"], requests, small, tight)
    assert pressed.record.requests["preemptions"].sum() > 0
    for request in requests:
        assert np.array_equal(plain.outputs[request.id], pressed.outputs[request.id])


@pytest.mark.parametrize(
    ("field", "value", "needed"),
    [
        ("temperature", -0.1, "at least 0"),
        ("top_k", -1, "at least 0"),
        ("top_p", 0.0, "in (0, 1]"),
        ("top_p", 1.5, "in (0, 1]"),
        ("seed", -1, "at least 0 and less than 2**63"),
        ("seed", 2**63, "at least 0 and less than 2**63"),
    ],
)
def test_impossible_rules_are_refused(field: str, value: Any, needed: str) -> None:
    with pytest.raises(ValueError) as error:
        SamplingParams(**{field: value})
    assert str(error.value) == f"{field}={value}: it must be {needed}"
