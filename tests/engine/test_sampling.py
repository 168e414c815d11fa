"""Which tokens may be drawn, how often, and that a draw belongs to its request alone."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from testbed.core.config import CacheConfig, SchedulerConfig
from testbed.engine.sampling import Sampler, SamplingParams
from tests.engine.building import Models, run_engine, some_requests

# Token 2 has probability 1/2, token 0 1/4, tokens 1 and 3 1/8.
LOGITS = torch.tensor([[4.0, 2.0, 8.0, 2.0]]).log()


def draws(rule: SamplingParams, count: int = 4000) -> Counter[int]:
    logits = LOGITS.expand(count, 4)
    return Counter(Sampler(rule).sample(logits, [(i, 0) for i in range(count)]).tolist())


def test_temperature_zero_takes_the_likeliest() -> None:
    assert draws(SamplingParams(), 10) == {2: 10}


def test_probabilities_are_kept() -> None:
    counts = draws(SamplingParams(temperature=1.0))
    for token, share in enumerate((0.25, 0.125, 0.5, 0.125)):
        # Five standard deviations of a fair draw; the seed is fixed.
        assert abs(counts[token] - 4000 * share) < 5 * (4000 * share * (1 - share)) ** 0.5


def test_temperature_sharpens() -> None:
    # At temperature 1/2 probabilities are squared: 16 : 4 : 64 : 4.
    counts = draws(SamplingParams(temperature=0.5))
    assert abs(counts[2] - 4000 * 64 / 88) < 150


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
    places = [(request, place) for request in (3, 8) for place in range(3)]
    together = Sampler(rule).sample(logits, places).tolist()
    alone = [int(Sampler(rule).sample(logits[:1], [place])[0]) for place in places]
    assert together == alone
    assert len(set(together)) > 1
    other = Sampler(replace(rule, seed=1)).sample(logits, places).tolist()
    assert other != together


def test_requests_have_rules_of_their_own() -> None:
    rules = {7: SamplingParams(temperature=1.0, top_k=1), 8: SamplingParams(temperature=5.0)}
    sampler = Sampler(by_request=rules)
    logits = LOGITS.expand(3, 4)
    drawn = [sampler.sample(logits, [(8, i), (7, i), (1, i)]).tolist() for i in range(50)]
    assert {row[1] for row in drawn} == {row[2] for row in drawn} == {2}
    assert {row[0] for row in drawn} == {0, 1, 2, 3}


def test_chunks_and_preemption_do_not_change_what_is_drawn(models: Models) -> None:
    requests = some_requests(10)
    sampler = Sampler(SamplingParams(temperature=0.8, top_p=0.9, seed=11))
    roomy = CacheConfig(num_pages=160, page_size=4)
    plain = run_engine(
        models["tiny-llama"], requests, roomy, SchedulerConfig(max_running=1), sampler=sampler
    )
    tight = SchedulerConfig(
        chunk_size=16, reserve="ratio", reserve_ratio=0.01, reserve_ratio_floor=0.01
    )
    small = CacheConfig(num_pages=26, page_size=4)
    pressed = run_engine(models["tiny-llama"], requests, small, tight, sampler=sampler)
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
        ("seed", -1, "at least 0"),
    ],
)
def test_impossible_rules_are_refused(field: str, value: Any, needed: str) -> None:
    with pytest.raises(ValueError) as error:
        SamplingParams(**{field: value})
    assert str(error.value) == f"{field}={value}: it must be {needed}"
