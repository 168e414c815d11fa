"""transformers' continuous batching on the CPU, with its prefix sharing on."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import session

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from transformers import AutoModelForCausalLM, GenerationConfig
from transformers.generation import ContinuousBatchingConfig


def main(model: str, max_batch_tokens: int) -> None:
    """Load, then answer {"prompts", "outputs"}."""
    module: Any = AutoModelForCausalLM.from_pretrained(
        model, dtype=torch.float32, attn_implementation="sdpa"
    ).eval()

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        prompts, outputs = request["prompts"], request["outputs"]
        page = 16
        tokens = sum(len(prompt) + outputs + page for prompt in prompts)
        start = time.perf_counter()
        results = module.generate_batch(
            inputs=prompts,
            generation_config=GenerationConfig(
                max_new_tokens=outputs, do_sample=False, eos_token_id=-1, pad_token_id=0
            ),
            continuous_batching_config=ContinuousBatchingConfig(
                page_size=page,
                num_blocks=-(-tokens // page),
                max_batch_tokens=max_batch_tokens,
                use_cuda_graph=False,
            ),
            progress_bar=False,
        )
        seconds = time.perf_counter() - start
        in_order = sorted(results.values(), key=lambda r: prompts.index(list(r.prompt_ids)))
        return {"seconds": seconds, "tokens": [list(r.generated_tokens) for r in in_order]}

    session.serve(answer)


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
