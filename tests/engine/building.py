"""Small parts that the engine's tests build their cases from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from transformers import GenerationConfig

from testbed.core.batch import Batch, StepResult
from testbed.core.config import CacheConfig, SchedulerConfig
from testbed.core.page_pool import PagePool, Pages
from testbed.core.request import Request, Tokens
from testbed.engine.attention import TorchAttention
from testbed.engine.attention_layout import SharingPays
from testbed.engine.executor import ModelExecutor, StepParts
from testbed.engine.kv_pool import KVPool
from testbed.engine.loop import EngineRun, serve
from testbed.engine.model import ATTENTION_NAME, Model, load_model
from testbed.engine.sampling import Place, Sampler
from testbed.policies import registry

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
    module = model.module
    module.set_attn_implementation("sdpa")
    own = module.generation_config
    # What generate() is not told it takes from there: also where to stop.
    module.generation_config = GenerationConfig(
        eos_token_id=list(request.stop_tokens) or None, pad_token_id=0
    )
    try:
        output = module.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=request.max_new_tokens,
            do_sample=False,
            output_logits=True,
            return_dict_in_generate=True,
        )
    finally:
        module.generation_config = own
        module.set_attn_implementation(ATTENTION_NAME)
    tokens = output.sequences[0, prompt.shape[1] :].to(torch.int32).numpy()
    return tokens, torch.cat(output.logits)


@contextmanager
def freed_pages() -> Iterator[list[int]]:
    """Collects the pages that are given back to any PagePool."""
    freed: list[int] = []
    free = PagePool.free

    def noting(pool: PagePool, pages: Pages) -> None:
        freed.extend(pages.tolist())
        free(pool, pages)

    PagePool.free = noting  # type: ignore[method-assign]
    try:
        yield freed
    finally:
        PagePool.free = free  # type: ignore[method-assign]


class PoisoningExecutor(ModelExecutor):
    """Fills every page with NaN before a row writes to it for the first time.

    What a recycled page held is gone then, and slots that nobody has written yet are NaN. So are
    the pages in `freed`, from the next step on.
    """

    freed: list[int] | None = None

    def execute(self, batch: Batch) -> StepResult:
        size = self.pool.page_size
        fresh: list[int] = []
        if self.freed:
            fresh += self.freed
            self.freed.clear()
        for sequence in batch.decodes:
            place, offset = divmod(sequence.num_computed_tokens, size)
            if offset == 0:
                fresh.append(int(sequence.pages[place]))
        for sequence, start, count in batch.prefills:
            fresh += sequence.pages[start // size : -(-(start + count) // size)].tolist()
        self.pool.poison(torch.tensor(fresh, dtype=torch.int64))
        return super().execute(batch)


class LogitsSampler(Sampler):
    """Keeps the logits of every sampled token, by request id and place."""

    def __init__(self) -> None:
        self.seen: dict[tuple[int, int], torch.Tensor] = {}

    def sample(self, logits: torch.Tensor, places: Sequence[Place]) -> Tokens:
        for (request, index), row in zip(places, logits.clone(), strict=True):
            self.seen[request.id, index] = row
        return super().sample(logits, places)


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
    """Serve on a poisoned pool (see PoisoningExecutor)."""
    pool = KVPool(model, cache.num_pages, cache.page_size)
    pool.poison()
    attention = TorchAttention(pool, share_prefixes=share_prefixes, sharing=SharingPays(1, 1))
    executor = PoisoningExecutor(model, pool, attention, sampler or Sampler())
    with freed_pages() as executor.freed:
        return serve(
            requests,
            executor=executor,
            cache=cache,
            scheduler=scheduler,
            policy=registry.scheduling(policy),
            eviction=registry.eviction(eviction),
        )
