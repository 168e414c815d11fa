"""Sampling: from logits to tokens, each request by its own rule and its own random draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import torch

from testbed.core.request import Tokens

Places: TypeAlias = Sequence[tuple[int, int]]
"""(request id, index of the output token) of each sampled row: the names of random draws."""


@dataclass(frozen=True)
class SamplingParams:
    """How one request's tokens are chosen.

    temperature: 0 takes the likeliest token. top_k: only so many likeliest; 0 for all. top_p: only
    the likeliest that together reach this probability. seed: of the request's own random draws.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name, accepted in (
            ("temperature", self.temperature >= 0),
            ("top_k", self.top_k >= 0),
            ("top_p", 0 < self.top_p <= 1),
            ("seed", self.seed >= 0),
        ):
            if not accepted:
                limits = "in (0, 1]" if name == "top_p" else "at least 0"
                raise ValueError(f"{name}={getattr(self, name)}: it must be {limits}")


@dataclass(frozen=True)
class Sampler:
    """Chooses the next token of every row.

    default: for requests that `by_request`, from request ids to their own parameters, leaves out.
    """

    default: SamplingParams = field(default_factory=SamplingParams)
    by_request: Mapping[int, SamplingParams] = field(default_factory=dict)

    def sample(self, logits: torch.Tensor, places: Places) -> Tokens:
        """int32[rows]: the next tokens.

        logits: float32 [rows, vocab_size]. A random draw depends on its place and the seed alone,
        not on the batch.
        """
        tokens = torch.argmax(logits, dim=-1)
        rules = [self.by_request.get(request, self.default) for request, _ in places]
        drawn = [row for row, rule in enumerate(rules) if rule.temperature > 0]
        if drawn:
            rows = torch.tensor(drawn, device=logits.device)
            tokens[rows] = _draw(
                logits[rows], [rules[row] for row in drawn], [places[row] for row in drawn]
            )
        return tokens.to("cpu", torch.int32).numpy()


def _draw(
    logits: torch.Tensor, rules: list[SamplingParams], places: list[tuple[int, int]]
) -> torch.Tensor:
    def column(values: Sequence[float]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float32, device=logits.device)[:, None]

    ordered, ids = logits.sort(dim=-1, descending=True, stable=True)
    ranks = torch.arange(logits.shape[1], device=logits.device)
    limits = column([rule.top_k or logits.shape[1] for rule in rules])
    scaled = ordered / column([rule.temperature for rule in rules])
    shares = scaled.masked_fill(ranks >= limits, -torch.inf).softmax(dim=-1)
    before = shares.cumsum(dim=-1) - shares
    # The first token whose predecessors reach top_p is out; the likeliest one always stays.
    kept = shares.masked_fill((before >= column([r.top_p for r in rules])) & (ranks > 0), 0)
    reached = kept.cumsum(dim=-1)
    draws = [_uniform(rule.seed, place) for rule, place in zip(rules, places, strict=True)]
    target = column(draws) * reached[:, -1:]
    # Rounding must not reach past the last token that is kept.
    last_kept = (kept > 0).sum(dim=-1, keepdim=True) - 1
    chosen = torch.minimum((reached <= target).sum(dim=-1, keepdim=True), last_kept)
    return ids.gather(1, chosen)[:, 0]


def _uniform(seed: int, place: tuple[int, int]) -> float:
    """A number in [0, 1) for this seed, request and token: counter-based, so order is no matter."""
    request, index = place
    bits = np.random.Philox(key=[seed, request], counter=[index, 0, 0, 0])
    return float(np.random.Generator(bits).random())
