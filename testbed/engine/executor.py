"""ModelExecutor: runs the scheduler's batches on a real model."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import NamedTuple, Protocol

import numpy as np
import torch

from testbed.core.batch import Batch, StepResult
from testbed.core.config import CacheConfig
from testbed.core.page_pool import Pages
from testbed.core.request import EMPTY_TOKENS, Request, Sequence
from testbed.engine.attention_backend import AttentionBackend, StepRows
from testbed.engine.kv_pool import KVPool
from testbed.engine.model import Model
from testbed.engine.sampling import Place, Sampler
from testbed.engine.shared_prefix import Indices

NO_TOKEN = -(2**31)
"""In the place of a prompt without tokens: no vocabulary has it, so that its request is refused."""


class StepParts(NamedTuple):
    """Where one step's time went, in seconds.

    prepare: from the batch to tensors on the device. forward: the model, up to the logits. sample:
    from logits to token ids in host memory.
    """

    prepare: float
    forward: float
    sample: float


class StepGraphs(Protocol):
    """Captured steps; see DecodeGraphs, which needs Triton."""

    def prepare(self, tokens: Indices, rows: StepRows) -> Callable[[], torch.Tensor] | None:
        """What computes the step's logits, [rows, vocab_size]; None if none was captured for it."""
        ...


class ModelExecutor:
    """The engine's side of the seam.

    Requests that come with an output are fed that output, whatever the model prefers; the others
    get what is sampled. graphs: runs the decode steps that it has room for; None to run every step
    op by op. `parts` is the newest step's time by part.
    """

    def __init__(
        self,
        model: Model,
        pool: KVPool,
        attention: AttentionBackend,
        sampler: Sampler,
        graphs: StepGraphs | None = None,
    ) -> None:
        self.model = model
        self.pool = pool
        self.parts = StepParts(0.0, 0.0, 0.0)
        self._attention = attention
        self._sampler = sampler
        self._graphs = graphs

    def refusal(self, request: Request) -> str | None:
        """Why the model cannot serve the request; None if it can."""
        if request.prompt[0] == NO_TOKEN:
            return "the prompt has no tokens"
        highest = self.model.vocab_size - 1
        for name, tokens in (("prompt", request.prompt), ("output", request.output)):
            if tokens is None:
                continue
            for token in (int(tokens.min()), int(tokens.max())):
                if not 0 <= token <= highest:
                    return f"{name} token {token}: the vocabulary is 0 to {highest}"
        length = len(request.prompt) + request.max_new_tokens
        if length > self.model.context_tokens:
            return f"{length} prompt and output tokens: the context is {self.model.context_tokens}"
        return None

    def check_cache(self, cache: CacheConfig) -> None:
        """ValueError unless every page of such a cache exists in the pool."""
        if cache.page_size != self.pool.page_size or cache.num_pages > self.pool.num_pages:
            raise ValueError(
                f"num_pages={cache.num_pages}, page_size={cache.page_size}: the KV pool has "
                f"{self.pool.num_pages} pages of {self.pool.page_size} tokens"
            )

    @torch.inference_mode()
    def execute(self, batch: Batch) -> StepResult:
        """Run one step on the model; seconds are measured with the device idle at both ends."""
        begin = perf_counter()
        tokens, rows, sampled, places = _unpack(batch)
        forward = None if self._graphs is None else self._graphs.prepare(tokens, rows)
        if forward is None:
            forward = self._prepare(tokens, rows, sampled)
        self._synchronise()
        prepared = perf_counter()
        logits = forward()
        self._synchronise()
        computed = perf_counter()
        chosen = self._sampler.sample(logits, places) if places else EMPTY_TOKENS
        end = perf_counter()
        self.parts = StepParts(prepared - begin, computed - prepared, end - computed)
        return StepResult(end - begin, chosen)

    def _prepare(
        self, tokens: Indices, rows: StepRows, sampled: Indices
    ) -> Callable[[], torch.Tensor]:
        """What computes the step's logits, op by op."""
        positions = np.concatenate(
            [np.arange(s, s + n) for s, n in zip(rows.starts, rows.counts, strict=True)]
        )
        step = self._attention.plan(rows)
        ids, places, logit_rows = (
            torch.from_numpy(array).to(self.model.device) for array in (tokens, positions, sampled)
        )
        return lambda: self.model.forward(ids, places, logit_rows, step)

    def _synchronise(self) -> None:
        if self.model.device.type == "cuda":
            torch.cuda.synchronize(self.model.device)


def _unpack(
    batch: Batch,
) -> tuple[Indices, StepRows, Indices, list[Place]]:
    """Token ids, rows, the places among the tokens that are sampled, and which draws those are."""
    tokens: list[Indices] = []
    starts: list[int] = []
    counts: list[int] = []
    tables: list[Pages] = []
    sampled: list[int] = []
    places: list[Place] = []
    if batch.decodes:
        tokens.append(np.array([_newest_token(s) for s in batch.decodes], dtype=np.int64))
    for place, sequence in enumerate(batch.decodes):
        starts.append(sequence.num_computed_tokens)
        counts.append(1)
        tables.append(sequence.pages[: sequence.num_pages])
        sampled.append(place)
        places.append(Place(sequence.request, sequence.num_generated_tokens))
    end = len(batch.decodes)
    for row in batch.prefills:
        sequence, start, count = row
        tokens.append(sequence.tokens[start : start + count].astype(np.int64))
        starts.append(start)
        counts.append(count)
        tables.append(sequence.pages[: sequence.num_pages])
        end += count
        if row.completes:
            sampled.append(end - 1)
            places.append(Place(sequence.request, sequence.num_generated_tokens))
    rows = StepRows(
        len(batch.decodes),
        np.array(starts, dtype=np.int64),
        np.array(counts, dtype=np.int64),
        tables,
    )
    return np.concatenate(tokens), rows, np.array(sampled, dtype=np.int64), places


def _newest_token(sequence: Sequence) -> int:
    """The token that a decoding sequence feeds back."""
    if sequence.generated is not None:
        return sequence.generated[-1]
    assert sequence.request.output is not None
    return int(sequence.request.output[sequence.num_generated_tokens - 1])
