"""bfloat16 on the CPU: slow, but the same path that a GPU takes.

Rounding decides between logits that lie close together, so tokens are judged by margin: each must
be the reference's choice, or lie within 0.1 logit of it, after the same tokens.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from testbed.core.config import CacheConfig, SchedulerConfig
from testbed.core.request import Request, Tokens
from testbed.engine.model import ATTENTION_NAME, Model, load_model
from tests.engine.building import LogitsSampler, run_engine, some_requests

MARGIN = 0.1


def reference_logits(model: Model, request: Request, output: Tokens) -> torch.Tensor:
    """transformers' logits [tokens, vocab] before each of the output's tokens, given the others."""
    known = np.concatenate([request.prompt, output[:-1]]).astype(np.int64)
    model.module.set_attn_implementation("sdpa")
    try:
        with torch.inference_mode():
            logits = model.module(torch.from_numpy(known)[None], use_cache=False).logits[0]
    finally:
        model.module.set_attn_implementation(ATTENTION_NAME)
    return logits[len(request.prompt) - 1 :].float()


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("family", ["tiny-llama", "tiny-mistral"])
def test_tokens_are_the_references_within_a_margin(family: str, page_size: int) -> None:
    model = load_model(family, dtype=torch.bfloat16)
    assert model.kv_bytes_per_token == 256
    requests = some_requests(8)
    cache = CacheConfig(num_pages=480 // page_size, page_size=page_size)
    sampler = LogitsSampler()
    run = run_engine(model, requests, cache, SchedulerConfig(chunk_size=48), sampler=sampler)
    assert run.record.requests["cached_tokens"].sum() > 0
    for request in requests:
        output = run.outputs[request.id]
        logits = reference_logits(model, request, output)
        chosen = logits[torch.arange(len(output)), torch.from_numpy(output.astype(np.int64))]
        assert float((logits.amax(dim=-1) - chosen).max()) <= MARGIN
        ours = torch.stack([sampler.seen[request.id, place] for place in range(len(output))])
        assert float((ours - logits).abs().max()) < 1.0
