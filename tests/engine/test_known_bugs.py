"""Failures that other engines met in public, held against the engine; numbers are their reports'.

tests/core/test_known_bugs.py has those that the scheduler's decisions show, and
tests/kernels/test_inputs.py the offsets past 2^31 (bug 18) in the kernels.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from testbed.core.batch import Batch, StepResult
from testbed.core.config import CacheConfig, SchedulerConfig
from testbed.core.request import Request, Tokens
from testbed.engine.attention import TorchAttention
from testbed.engine.attention_backend import StepRows
from testbed.engine.kv_pool import KVPool
from testbed.engine.loop import EngineRun, serve
from testbed.engine.sampling import Sampler
from testbed.policies import registry
from tests.engine.building import Models, PoisoningExecutor, reference, run_engine, some_requests

ROOMY = SchedulerConfig(chunk_size=64)
# Nothing is kept free for outputs, so that decoding runs out of memory.
TIGHT = SchedulerConfig(
    reserve="ratio", reserve_ratio=0.0, reserve_ratio_floor=0.0, reserve_newcomer=False
)
MODEL = "tiny-llama"


def answers(models: Models, requests: list[Request], name: str = MODEL) -> dict[int, list[int]]:
    return {request.id: reference(models[name], request)[0].tolist() for request in requests}


def outputs(run: EngineRun) -> dict[int, list[int]]:
    return {id: tokens.tolist() for id, tokens in run.outputs.items()}


def prompt_of(length: int, seed: int) -> Tokens:
    return np.random.default_rng(seed).integers(0, 512, length).astype(np.int32)


@pytest.mark.parametrize("page_size", [1, 16])
def test_equal_prompts_in_one_step_share_pages_safely(
    models: Models, page_size: int
) -> None:  # bug 1
    """mini-sglang PR 142: duplicates were freed while a page table pointed at them."""
    prompt = prompt_of(48, seed=6)
    requests = [Request(id, prompt, max_new_tokens=12) for id in range(2)]
    requests += [replace(r, id=2 + r.id) for r in some_requests(4, seed=7)]
    cache = CacheConfig(num_pages=480 // page_size, page_size=page_size)
    run = run_engine(models[MODEL], requests, cache, ROOMY)
    assert outputs(run) == answers(models, requests)


class Watchful(PoisoningExecutor):
    """Notes when each request is in a batch, and that tables are its own while it is."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.batches: list[set[int]] = []

    def execute(self, batch: Batch) -> StepResult:
        sequences = [*batch.decodes, *(row.sequence for row in batch.prefills)]
        before = [s.pages[: s.num_pages].copy() for s in sequences]
        result = super().execute(batch)
        for sequence, table in zip(sequences, before, strict=True):
            assert np.array_equal(sequence.pages[: sequence.num_pages], table)
        self.batches.append({sequence.request.id for sequence in sequences})
        return result


@pytest.mark.parametrize("page_size", [1, 4])
def test_who_is_admitted_as_another_leaves_inherits_nothing(
    models: Models, page_size: int
) -> None:  # bugs 2 and 4
    """mini-sglang PR 111, SGLang PR 18803: rows and pages recycled under a launched batch.

    Two at a time in a pool that holds just two: each departure is followed at once by an admission
    into the same pages. There are no rows to recycle: tables are the sequences' own.
    """
    draw = np.random.default_rng(1)
    requests = [
        Request(id, prompt_of(20, seed=id), max_new_tokens=int(draw.integers(1, 9)))
        for id in range(12)
    ]
    cache = CacheConfig(num_pages=56 // page_size, page_size=page_size)
    pool = KVPool(models[MODEL], cache.num_pages, page_size)
    pool.poison()
    executor = Watchful(models[MODEL], pool, TorchAttention(pool), Sampler())
    run = serve(
        requests,
        executor=executor,
        cache=cache,
        scheduler=SchedulerConfig(max_running=2),
        policy=registry.scheduling("fcfs"),
        eviction=registry.eviction("lru"),
    )
    turnovers = [
        (before, after)
        for before, after in zip(executor.batches, executor.batches[1:], strict=False)
        if before - after and after - before
    ]
    assert turnovers
    assert outputs(run) == answers(models, requests)


@pytest.mark.parametrize("page_size", [1, 4])
def test_a_stopped_output_can_be_continued(models: Models, page_size: int) -> None:  # bug 5
    """SGLang 24590: the tree held one token more than had been computed."""
    prompt = prompt_of(30, seed=2)
    free = Request(0, prompt, max_new_tokens=12)
    script = reference(models[MODEL], free)[0]
    stop = int(script[6])
    length = script.tolist().index(stop) + 1
    stopping = replace(free, stop_tokens=(stop,))
    longer = np.concatenate([prompt, script[:length], prompt_of(1, seed=3)]).astype(np.int32)
    follower = Request(1, longer, max_new_tokens=6, arrival=1.0)
    cache = CacheConfig(num_pages=200 // page_size, page_size=page_size)
    run = run_engine(models[MODEL], [stopping, follower], cache, ROOMY)
    computed = 30 + length - 1
    assert run.record.requests["cached_tokens"].tolist() == [0, computed - computed % page_size]
    assert outputs(run) == answers(models, [stopping, follower])


@pytest.mark.parametrize("page_size", [1, 16])
def test_a_repeated_prompt_computes_at_least_its_last_token(
    models: Models, page_size: int
) -> None:  # bugs 6 and 8
    """SGLang PR 38140, nano-vllm 144, vLLM 7753: a full hit, its length a multiple of the page."""
    prompt = prompt_of(48, seed=5)
    requests = [Request(id, prompt, max_new_tokens=5, arrival=id / 1000) for id in range(3)]
    cache = CacheConfig(num_pages=320 // page_size, page_size=page_size)
    run = run_engine(models[MODEL], requests, cache, replace(ROOMY, max_running=1))
    full = 48 - page_size
    assert run.record.requests["cached_tokens"].tolist() == [0, full, full]
    assert outputs(run) == answers(models, requests)


@pytest.mark.parametrize("kind", ["radix", "block_hash"])
def test_chunks_of_a_preempted_prefill_are_no_garbage(models: Models, kind: Any) -> None:  # bug 7
    """SGLang 38319: a prefix stayed wrong until the cache was flushed."""
    shared = prompt_of(60, seed=8)
    requests = [
        Request(0, prompt_of(12, seed=9), max_new_tokens=30),
        Request(1, shared, max_new_tokens=4),
        Request(2, np.concatenate([shared, shared[:5]]), max_new_tokens=4, arrival=0.001),
        Request(3, shared, max_new_tokens=6, arrival=5.0),
    ]
    cache = CacheConfig(num_pages=19, page_size=4, kind=kind)
    scheduler = replace(TIGHT, chunk_size=8)
    run = run_engine(models[MODEL], requests, cache, scheduler)
    preempted = [row for row in run.log.rows if row[2] == "preempt"]
    generated = {row[3] for row in preempted if row[4] < 60 and row[3]}
    assert generated, "one must go before its prefill is complete"
    assert outputs(run) == answers(models, requests)


@pytest.mark.parametrize("chunk_size", [8, 12, 64])
@pytest.mark.parametrize("page_size", [1, 4])
def test_positions_are_right_after_preemption_with_a_hit(
    models: Models, page_size: int, chunk_size: int
) -> None:  # bug 9
    """nano-vllm PRs 207, 211, 213: lengths from before the hit, or of the prompt for the chunk."""
    requests = some_requests(8, seed=4, shared=24, alone=12, outputs=40)
    cache = CacheConfig(num_pages=72 // page_size, page_size=page_size)
    run = run_engine(models[MODEL], requests, cache, replace(TIGHT, chunk_size=chunk_size))
    assert run.record.requests["preemptions"].sum() > 0
    assert run.record.requests["rehit_tokens"].sum() > 0
    assert outputs(run) == answers(models, requests)


@pytest.mark.parametrize("page_size", [1, 16])
def test_the_longest_sequence_and_short_ones_after_it(
    models: Models, page_size: int
) -> None:  # bug 11
    """nano-vllm PR 258: page tables one column short at the full context, stale ones afterwards."""
    context = models[MODEL].context_tokens
    longest = Request(0, prompt_of(context - 2, seed=1), max_new_tokens=2)
    short = [
        Request(id, prompt_of(5 * id, seed=id), max_new_tokens=6, arrival=id / 1000)
        for id in (1, 2, 3)
    ]
    cache = CacheConfig(num_pages=(context + 256) // page_size, page_size=page_size)
    # Together they decode beside the longest, then alone.
    together = [replace(request, arrival=0.0) for request in short]
    for requests in ([longest, *short], [longest, *together]):
        run = run_engine(models[MODEL], requests, cache, SchedulerConfig())
        assert outputs(run) == answers(models, requests)


def test_tenants_with_equal_prompts_compute_their_own(models: Models) -> None:  # bug 14
    """vLLM 8229 and GHSA-rm76-4mrf-v9r8: KV of another prompt, or of another tenant, was reused."""
    prompt = prompt_of(33, seed=1)
    near = prompt.copy()
    near[0] += 256 if near[0] < 256 else -256
    requests = [
        Request(id, tokens, max_new_tokens=8, arrival=id / 1000, namespace=space)
        for id, (tokens, space) in enumerate(
            [(prompt, "a"), (prompt, "b"), (near, "a"), (prompt, "a")]
        )
    ]
    for kind in ("radix", "block_hash"):
        cache = CacheConfig(num_pages=200, page_size=4, kind=kind)
        run = run_engine(models[MODEL], requests, cache, replace(ROOMY, max_running=1))
        assert run.record.requests["cached_tokens"].tolist() == [0, 0, 0, 32]
        assert outputs(run) == answers(models, requests)


def test_pages_past_two_to_the_31_elements_are_read_and_written(tmp_path: Path) -> None:  # bug 18
    """vLLM 47671 and 50427, SGLang 9344, 20389, 28788: page times stride in 32 bits."""
    draw = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn((4, 1, 16), generator=draw, dtype=torch.float16) for _ in range(3)
    )
    attended = []
    for last in (2, 2**25 + 1):
        shape = (last + 1, 4, 1, 16)
        # Sparse files: what is never touched takes no room.
        keys, values = (
            torch.from_file(
                str(tmp_path / f"{name}{last}"),
                shared=True,
                size=(last + 1) * 64,
                dtype=torch.float16,
            ).view(shape)
            for name in ("keys", "values")
        )
        pool: Any = SimpleNamespace(
            keys=[keys], values=[values], page_size=4, num_pages=last, padding_page=last
        )
        table = np.array([last - 1], dtype=np.int32)
        step = TorchAttention(pool).plan(StepRows(0, np.array([0]), np.array([4]), [table]))
        attended.append(step.attend(0, query, key, value, 0.25, None))
        assert torch.equal(keys[last - 1], key)
        decode = TorchAttention(pool).plan(StepRows(1, np.array([3]), np.array([1]), [table]))
        attended.append(decode.attend(0, query[3:], key[3:], value[3:], 0.25, None))
    near, near_decode, far, far_decode = attended
    assert (last - 1) * 64 > 2**31 - 1
    assert torch.equal(near, far)
    assert torch.equal(near_decode, far_decode)
