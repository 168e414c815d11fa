"""Sampling: from logits to tokens, each request by its own rule and its own random draws."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from testbed.core.request import Request, Tokens


class Place(NamedTuple):
    """The output token that a sampled row decides, counted from 0 within its request."""

    request: Request
    output_index: int


class Sampler:
    """Chooses the next token of every row by its request's SamplingParams."""

    def sample(self, logits: torch.Tensor, places: Sequence[Place]) -> Tokens:
        """int32[rows]: the next tokens.

        logits: float32 [rows, vocab_size]. A random draw depends on the seed, the request's id and
        the token's place alone, not on the batch; requests of one seed draw independently.
        """
        tokens = torch.argmax(logits, dim=-1)
        drawn = [row for row, (request, _) in enumerate(places) if request.sampling.temperature > 0]
        if drawn:
            rows = torch.tensor(drawn, device=logits.device)
            tokens[rows] = _draw(logits[rows], [places[row] for row in drawn])
        return tokens.to("cpu", torch.int32).numpy()


def _draw(logits: torch.Tensor, places: list[Place]) -> torch.Tensor:
    rules = [place.request.sampling for place in places]

    def column(values: list[float]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float32, device=logits.device)[:, None]

    ordered, ids = logits.sort(dim=-1, descending=True, stable=True)
    ranks = torch.arange(logits.shape[1], device=logits.device)
    limits = column([rule.top_k or logits.shape[1] for rule in rules])
    # The likeliest becomes 0 first, as tiny temperatures would make it infinite.
    scaled = (ordered - ordered[:, :1]) / column([max(r.temperature, 1e-6) for r in rules])
    shares = scaled.masked_fill(ranks >= limits, -torch.inf).softmax(dim=-1)
    before = shares.cumsum(dim=-1) - shares
    # The first token whose predecessors reach top_p is out; the likeliest one always stays.
    kept = shares.masked_fill((before >= column([r.top_p for r in rules])) & (ranks > 0), 0)
    reached = kept.cumsum(dim=-1)
    target = column([_uniform(place) for place in places]) * reached[:, -1:]
    # Rounding must not reach past the last token that is kept.
    last_kept = (kept > 0).sum(dim=-1, keepdim=True) - 1
    chosen = torch.minimum((reached <= target).sum(dim=-1, keepdim=True), last_kept)
    return ids.gather(1, chosen)[:, 0]


def _uniform(place: Place) -> float:
    """A number in [0, 1): counter-based, so the order of draws is no matter."""
    request, index = place
    bits = np.random.Philox(key=[request.sampling.seed, request.id], counter=[index, 0, 0, 0])
    return float(np.random.Generator(bits).random())
