"""Batch: what to run this step. BatchShape: its features. StepResult: what came of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from testbed.core.request import Sequence, Tokens


class BatchShape(NamedTuple):
    """The numbers a step-time model needs; all counts of one step, in tokens or rows.

    prefill_pairs: sum over prefill rows of (query, key) pairs under the causal mask, i.e.
    n * context + n * (n + 1) / 2 for n new tokens after `context` computed ones.
    prefill_context: sum over prefill rows of context + n: the KV that is read.
    decode_context: sum over decode rows of the context length, the new token included.
    logit_rows: rows whose next token is sampled (decode rows and prefills that complete).
    decode_shared: of decode_context, the KV in pages that another decode row before reads too: what
    attention over shared prefixes spares.
    """

    decode_rows: int = 0
    decode_context: int = 0
    prefill_rows: int = 0
    prefill_tokens: int = 0
    prefill_pairs: int = 0
    prefill_context: int = 0
    logit_rows: int = 0
    decode_shared: int = 0


class Prefill(NamedTuple):
    """One row of a prefill: compute `num_tokens` tokens of the sequence from position `start`."""

    sequence: Sequence
    start: int
    num_tokens: int

    @property
    def completes(self) -> bool:
        """Whether the row computes the last known token, so that its logits are sampled."""
        return self.start + self.num_tokens == len(self.sequence.tokens)


def shape_of(
    decodes: list[Sequence], context: int, shared: int, prefills: list[Prefill]
) -> BatchShape:
    """The shape of a step; context, shared: decode_context and decode_shared."""
    tokens = pairs = prefill_context = 0
    logit_rows = len(decodes)
    for row in prefills:
        tokens += row.num_tokens
        pairs += row.num_tokens * row.start + row.num_tokens * (row.num_tokens + 1) // 2
        prefill_context += row.start + row.num_tokens
        logit_rows += row.completes
    return BatchShape(
        len(decodes), context, len(prefills), tokens, pairs, prefill_context, logit_rows, shared
    )


@dataclass(slots=True)
class Batch:
    """One step's work, in row order: every decode (one token each), then every prefill chunk.

    All pages that the step writes are in the sequences' page tables already.
    """

    step: int
    decodes: list[Sequence]
    prefills: list[Prefill]
    shape: BatchShape


class StepResult(NamedTuple):
    """seconds: how long the step took. tokens: int32[logit_rows] in row order, or None where each
    request's scripted output says what was sampled."""

    seconds: float
    tokens: Tokens | None = None


class Executor(Protocol):
    """The only seam between simulation and hardware."""

    def execute(self, batch: Batch) -> StepResult:
        """Run one step. The batch is only valid until it is committed."""
        ...
