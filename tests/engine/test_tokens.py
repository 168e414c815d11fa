"""What the engine generates is what transformers generates, however the work is cut up.

Float32 on the CPU: logits differ by about 1e-5 and the top two lie further apart, so that tokens
must be equal. Every pool is poisoned (see PoisoningExecutor).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from testbed.core.config import CacheConfig, SchedulerConfig
from testbed.core.request import Request, Tokens
from testbed.engine.attention import TorchAttention
from testbed.engine.kv_pool import KVPool
from testbed.engine.loop import EngineRun, serve
from testbed.policies import registry
from tests.engine.building import (
    FAMILIES,
    LogitsSampler,
    Models,
    PoisoningExecutor,
    reference,
    run_engine,
    some_requests,
)

REQUESTS = some_requests(10)
ROOMY = SchedulerConfig(chunk_size=64)


@pytest.fixture(scope="module")
def expected(models: Models) -> dict[str, dict[int, Tokens]]:
    """Tokens by family and request."""
    answers: dict[str, dict[int, Tokens]] = {}
    for family in FAMILIES:
        answers[family] = {}
        for request in REQUESTS:
            tokens, logits = reference(models[family], request)
            best = logits.topk(2, dim=-1).values
            assert float((best[:, 0] - best[:, 1]).min()) > 1e-3, "too close for a fair test"
            answers[family][request.id] = tokens
    return answers


def check(run: EngineRun, expected: dict[int, Tokens]) -> None:
    assert run.outputs.keys() == expected.keys()
    for id, tokens in expected.items():
        assert run.outputs[id].tolist() == tokens.tolist(), f"request {id}"


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("kind", ["radix", "block_hash", "none"])
@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_are_transformers_tokens(
    models: Models, expected: Any, family: str, kind: Any, page_size: int
) -> None:
    cache = CacheConfig(num_pages=640 // page_size, page_size=page_size, kind=kind)
    run = run_engine(models[family], REQUESTS, cache, ROOMY, policy="lpm")
    hits = run.record.requests["cached_tokens"].sum()
    assert (hits > 0) == (kind != "none")
    check(run, expected[family])


@pytest.mark.parametrize("batching", ["mixed", "prefill_first"])
@pytest.mark.parametrize("chunk_size", [0, 16, 40])
@pytest.mark.parametrize("insert_at", ["commit", "schedule"])
def test_chunks_and_batching_do_not_matter(
    models: Models, expected: Any, batching: Any, chunk_size: int, insert_at: Any
) -> None:
    cache = CacheConfig(num_pages=160, page_size=4, insert_at=insert_at)
    scheduler = SchedulerConfig(chunk_size=chunk_size, batching=batching)
    check(run_engine(models["tiny-llama"], REQUESTS, cache, scheduler), expected["tiny-llama"])


@pytest.mark.parametrize("family", FAMILIES)
def test_preemption_does_not_matter(models: Models, expected: Any, family: str) -> None:
    scheduler = SchedulerConfig(
        chunk_size=32, reserve="ratio", reserve_ratio=0.01, reserve_ratio_floor=0.01
    )
    cache = CacheConfig(num_pages=26, page_size=4)
    run = run_engine(models[family], REQUESTS, cache, scheduler)
    assert run.record.requests["preemptions"].sum() > 0
    check(run, expected[family])


@pytest.mark.parametrize("share_prefixes", [True, False])
def test_sharing_the_reads_of_a_prefix_does_not_matter(
    models: Models, expected: Any, share_prefixes: bool
) -> None:
    cache = CacheConfig(num_pages=640, page_size=1, insert_at="schedule")
    run = run_engine(models["tiny-smollm2"], REQUESTS, cache, ROOMY, share_prefixes=share_prefixes)
    check(run, expected["tiny-smollm2"])


def test_one_by_one_is_all_at_once(models: Models, expected: Any) -> None:
    cache = CacheConfig(num_pages=40, page_size=16)
    alone = replace(ROOMY, max_running=1)
    check(run_engine(models["tiny-qwen3"], REQUESTS, cache, alone), expected["tiny-qwen3"])


def test_a_given_output_is_fed_back_whatever_the_model_prefers(models: Models) -> None:
    request = some_requests(1, seed=8)[0]
    script = np.array([5, 400, 17, 300], dtype=np.int32)
    given = Request(0, request.prompt, script)
    longer = Request(1, np.concatenate([request.prompt, script]), max_new_tokens=1, arrival=1.0)
    cache = CacheConfig(num_pages=200, page_size=1)
    run = run_engine(models["tiny-llama"], [given, longer], cache, ROOMY)
    assert run.outputs[0].tolist() == script.tolist()
    # The next prompt finds the script's KV in the tree: all but the last token's.
    assert run.record.requests["cached_tokens"].tolist() == [0, len(request.prompt) + 3]
    assert run.outputs[1].tolist() == reference(models["tiny-llama"], longer)[0].tolist()


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_within_1e_4(models: Models, family: str) -> None:
    sampler = LogitsSampler()
    cache = CacheConfig(num_pages=160, page_size=4)
    run_engine(models[family], REQUESTS[:4], cache, ROOMY, sampler=sampler)
    for request in REQUESTS[:4]:
        _, logits = reference(models[family], request)
        ours = torch.stack([sampler.seen[request.id, i] for i in range(len(logits))])
        assert float((ours - logits).abs().max()) < 1e-4


@pytest.mark.parametrize("kind", ["radix", "none"])
@pytest.mark.parametrize(("page_size", "chunk_size"), [(1, 24), (16, 32)])
def test_logits_do_not_depend_on_chunks_hits_or_preemption(
    models: Models, kind: Any, page_size: int, chunk_size: int
) -> None:
    sampler = LogitsSampler()
    requests = some_requests(8, seed=12, shared=32, alone=12, outputs=48)
    cache = CacheConfig(num_pages=96 // page_size, page_size=page_size, kind=kind)
    scheduler = SchedulerConfig(
        chunk_size=chunk_size,
        reserve="ratio",
        reserve_ratio=0.0,
        reserve_ratio_floor=0.0,
        reserve_newcomer=False,
    )
    run = run_engine(models["tiny-llama"], requests, cache, scheduler, sampler=sampler)
    assert run.record.requests["preemptions"].sum() > 0
    for request in requests:
        _, logits = reference(models["tiny-llama"], request)
        ours = torch.stack([sampler.seen[request.id, i] for i in range(len(logits))])
        assert float((ours - logits).abs().max()) < 1e-4


@pytest.mark.parametrize("kind", ["radix", "block_hash", "none"])
@pytest.mark.parametrize("batching", ["mixed", "prefill_first"])
def test_an_output_ends_with_the_first_stop_token(
    models: Models, expected: Any, kind: Any, batching: Any
) -> None:
    """Under pressure, so that some end just after they were preempted."""
    whole = expected["tiny-llama"]
    stops = {id: tokens.tolist()[len(tokens) // 2] for id, tokens in whole.items()}
    requests = [
        replace(r, stop_tokens=(511, stops[r.id]) if r.id % 3 else (stops[r.id],)) for r in REQUESTS
    ]
    cut = {}
    for request in requests:
        tokens = whole[request.id].tolist()
        first = min(tokens.index(stop) for stop in request.stop_tokens if stop in tokens)
        cut[request.id] = whole[request.id][: first + 1]
    assert sum(map(len, cut.values())) < sum(map(len, whole.values()))
    assert reference(models["tiny-llama"], requests[3])[0].tolist() == cut[3].tolist()
    scheduler = SchedulerConfig(
        chunk_size=32,
        batching=batching,
        reserve="ratio",
        reserve_ratio=0.01,
        reserve_ratio_floor=0.01,
    )
    cache = CacheConfig(num_pages=26, page_size=4, kind=kind)
    run = run_engine(models["tiny-llama"], requests, cache, scheduler)
    check(run, cut)
    finished = run.record.requests["status"].tolist()
    assert finished == ["finished"] * len(requests)


def test_a_stale_page_would_be_noticed(models: Models) -> None:
    """The poison works: a page lost under a cached prefix spoils what reads it."""
    model = models["tiny-llama"]
    prompt = some_requests(1, seed=9)[0].prompt[:40].copy()
    cache = CacheConfig(num_pages=100, page_size=1)
    pool = KVPool(model, 100, 1)

    def requests() -> Iterator[Request]:
        yield Request(0, prompt, max_new_tokens=1)
        yield Request(1, prompt, max_new_tokens=3, arrival=1.0)
        pool.poison(torch.tensor([7]))

    seen = LogitsSampler()
    serve(
        requests(),
        executor=PoisoningExecutor(model, pool, TorchAttention(pool), seen),
        cache=cache,
        scheduler=ROOMY,
        policy=registry.scheduling("fcfs"),
        eviction=registry.eviction("lru"),
    )
    assert not seen.seen[0, 0].isnan().any()
    assert seen.seen[1, 0].isnan().all()
