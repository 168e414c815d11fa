"""vLLM's CPU build, which generates for sets of prompts, its prefix cache emptied before each.

Its scheduler and worker run in this process, as ours do.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import session

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ["VLLM_CPU_KVCACHE_SPACE"] = "2"
os.environ["HF_HUB_OFFLINE"] = "1"

from torch.profiler import ProfilerActivity, profile
from vllm import LLM, SamplingParams  # type: ignore[import-not-found]

from experiments.benchmarks.operator_times import milliseconds_by_part


def main(model: str, max_batch_tokens: int) -> None:
    """Load, then answer {"prompts", "outputs", "profiled"}."""
    llm = LLM(
        model=model,
        dtype="float32",
        skip_tokenizer_init=True,
        enforce_eager=True,
        max_num_batched_tokens=max_batch_tokens,
        max_model_len=max_batch_tokens,
        enable_prefix_caching=True,
        disable_log_stats=True,
    )

    def generate(request: dict[str, Any]) -> tuple[float, list[list[int]]]:
        prompts = [{"prompt_token_ids": prompt} for prompt in request["prompts"]]
        greedy = SamplingParams(
            temperature=0.0, max_tokens=request["outputs"], ignore_eos=True, detokenize=False
        )
        if not llm.reset_prefix_cache():
            raise RuntimeError("vLLM did not empty its prefix cache")
        start = time.perf_counter()
        outputs = llm.generate(prompts, greedy, use_tqdm=False)
        seconds = time.perf_counter() - start
        return seconds, [list(output.outputs[0].token_ids) for output in outputs]

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        if request["profiled"]:
            with profile(activities=[ProfilerActivity.CPU]) as operators:
                generate(request)
            return milliseconds_by_part(operators.key_averages())
        seconds, tokens = generate(request)
        return {"seconds": seconds, "tokens": tokens}

    session.serve(answer)


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
