"""Small parts that the engine's tests build their cases from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch

from testbed.core.batch import Batch, StepResult
from testbed.core.config import CacheConfig, SchedulerConfig
from testbed.core.request import Request, Tokens
from testbed.engine.attention import TorchAttention
from testbed.engine.executor import ModelExecutor, StepParts
from testbed.engine.kv_pool import KVPool
from testbed.engine.loop import EngineRun, serve
from testbed.engine.model import ATTENTION_NAME, Model, load_model
from testbed.engine.sampling import Sampler
from testbed.policies import registry
from testbed.sim.recorded import Replay, replay

FAMILIES = ("tiny-llama", "tiny-qwen2", "tiny-qwen3", "tiny-mistral", "tiny-smollm2")


class Models:
    """Models by name, each loaded once."""

    def __init__(self) -> None:
        self._loaded: dict[str, Model] = {}

    def __getitem__(self, name: str) -> Model:
        if name not in self._loaded:
            self._loaded[name] = load_model(name)
        return self._loaded[name]


def reference(model: Model, request: Request) -> tuple[Tokens, torch.Tensor]:
    """transformers' own greedy generation: tokens and the logits [tokens, vocab] they came from."""
    prompt = torch.from_numpy(request.prompt.astype(np.int64))[None]
    model.module.set_attn_implementation("sdpa")
    try:
        output = model.module.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=request.max_new_tokens,
            do_sample=False,
            output_logits=True,
            return_dict_in_generate=True,
        )
    finally:
        model.module.set_attn_implementation(ATTENTION_NAME)
    tokens = output.sequences[0, prompt.shape[1] :].to(torch.int32).numpy()
    return tokens, torch.cat(output.logits)


class PoisoningExecutor(ModelExecutor):
    """Fills every page with NaN before a row writes to it for the first time.

    What a recycled page held is gone then, and slots that nobody has written yet are NaN.
    """

    def execute(self, batch: Batch) -> StepResult:
        size = self.pool.page_size
        fresh: list[int] = []
        for sequence in batch.decodes:
            place, offset = divmod(sequence.num_computed_tokens, size)
            if offset == 0:
                fresh.append(int(sequence.pages[place]))
        for sequence, start, count in batch.prefills:
            fresh += sequence.pages[start // size : -(-(start + count) // size)].tolist()
        self.pool.poison(torch.tensor(fresh, dtype=torch.int64))
        return super().execute(batch)


class ScriptedExecutor:
    """No model: the token depends on the request and the place alone."""

    parts = StepParts(0.0, 0.0, 0.0)

    def execute(self, batch: Batch) -> StepResult:
        rows = batch.decodes + [row.sequence for row in batch.prefills if row.completes]
        tokens = [(7 * s.request.id + 3 * s.num_generated_tokens) % 11 for s in rows]
        return StepResult(0.0, np.array(tokens, dtype=np.int32))

    def refusal(self, request: Request) -> str | None:
        return "it is negative" if request.prompt.min() < 0 else None

    def check_cache(self, cache: CacheConfig) -> None:
        pass


def some_requests(
    count: int, seed: int = 0, *, shared: int = 48, alone: int = 30, outputs: int = 20
) -> list[Request]:
    """Requests that share a prefix of `shared` tokens, half of them another half of it."""
    draw = np.random.default_rng(seed)
    prefixes = draw.integers(0, 512, (3, shared))
    prefixes[1, : shared // 2] = prefixes[0, : shared // 2]
    requests = []
    for id in range(count):
        own = draw.integers(0, 512, int(draw.integers(1, alone)))
        prompt = np.concatenate([prefixes[int(draw.integers(0, 3))], own]).astype(np.int32)
        limit = int(draw.integers(1, outputs))
        client = "ab"[id % 2]
        requests.append(Request(id, prompt, max_new_tokens=limit, client=client))
    return requests


def run_engine(
    model: Model,
    requests: Iterable[Request],
    cache: CacheConfig,
    scheduler: SchedulerConfig,
    *,
    policy: str = "fcfs",
    eviction: str = "lru",
    share_prefixes: bool = True,
    sampler: Sampler | None = None,
) -> EngineRun:
    """Serve on a poisoned pool."""
    pool = KVPool(model, cache.num_pages, cache.page_size)
    pool.poison()
    attention = TorchAttention(pool, share_prefixes=share_prefixes, min_saved_tokens=1)
    return serve(
        requests,
        executor=PoisoningExecutor(model, pool, attention, sampler or Sampler()),
        cache=cache,
        scheduler=scheduler,
        policy=registry.scheduling(policy),
        eviction=registry.eviction(eviction),
    )


def replay_of(
    run: EngineRun,
    requests: Iterable[Request],
    cache: CacheConfig,
    scheduler: SchedulerConfig,
    **policies: Any,
) -> Replay:
    """The run again, in the simulator."""
    by_id: Mapping[int, Request] = {request.id: request for request in requests}
    return replay(
        [by_id[id] for id in run.added["request"].tolist()],
        added=run.added["added_s"],
        seconds=run.measured["seconds"],
        sampled=run.measured["logit_rows"],
        tokens=run.tokens,
        cache=cache,
        scheduler=scheduler,
        **policies,
    )
