"""The engine against transformers' continuous batching: equal models, the same requests, in turns.

Neither has anything cached when a round begins; both have compiled and captured in round 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
from transformers import AutoModelForCausalLM, GenerationConfig

from experiments.gpu.models import Built, build, executor
from experiments.gpu.setting import Setting
from testbed.core.config import CacheConfig, SchedulerConfig
from testbed.core.request import Request
from testbed.engine.executor import ModelExecutor
from testbed.engine.loop import serve
from testbed.policies import registry

REQUESTS, SHARED_TOKENS, OWN_TOKENS, OUTPUT_TOKENS = 256, 512, 64, 128
ROUNDS = 3


def some_requests(setting: Setting, vocab: int, seed: int) -> list[Request]:
    """All at once; prompts that share their first tokens."""
    draw = np.random.default_rng(seed)
    shared = draw.integers(0, vocab, setting.size(SHARED_TOKENS, 32))
    return [
        Request(
            id,
            np.concatenate((shared, draw.integers(0, vocab, OWN_TOKENS))).astype(np.int32),
            max_new_tokens=setting.size(OUTPUT_TOKENS, 3),
        )
        for id in range(setting.size(REQUESTS, 2))
    ]


def engine_tokens(built: Built, runner: ModelExecutor, requests: list[Request]) -> int:
    """Serve with an empty cache; output tokens."""
    pool = built.pool
    run = serve(
        requests,
        executor=runner,
        cache=CacheConfig(pool.num_pages, page_size=pool.page_size, insert_at="schedule"),
        scheduler=SchedulerConfig(max_running=256),
        policy=registry.scheduling("fcfs"),
        eviction=registry.eviction("lru"),
    )
    return sum(len(tokens) for tokens in run.outputs.values())


def peer_module(built: Built, setting: Setting) -> Any:
    """The model again, with an attention that transformers' continuous batching takes."""
    loader: Any = AutoModelForCausalLM
    # A model keeps its config and writes to it.
    config = deepcopy(built.model.module.config)
    with setting.device:
        module = loader.from_config(config, dtype=setting.dtype, attn_implementation="sdpa")
    module.load_state_dict(built.model.module.state_dict())
    return module.eval()


def peer_tokens(module: Any, requests: list[Request], setting: Setting) -> int:
    """generate_batch with its own defaults: it sizes its cache and captures graphs, and keeps both
    for the next round."""
    from transformers.generation.configuration_utils import ContinuousBatchingConfig

    # On a CPU it cannot tell how much memory to take.
    on_cpu: dict[str, Any] = {"block_size": 16, "num_blocks": 40, "max_batch_tokens": 256}
    on_cpu["use_cuda_graph"] = False
    make_config: Any = GenerationConfig
    results = module.generate_batch(
        [request.prompt.tolist() for request in requests],
        generation_config=make_config(
            max_new_tokens=requests[0].max_new_tokens,
            do_sample=False,
            eos_token_id=-1,
            pad_token_id=0,
        ),
        continuous_batching_config=ContinuousBatchingConfig(**(on_cpu if setting.smoke else {})),
        persistent_manager=True,
    )
    return sum(len(result.generated_tokens) for result in results.values())


def rate(
    serve_all: Callable[[list[Request]], int], requests: list[Request], setting: Setting
) -> float:
    """Output tokens a second; RuntimeError if some are missing."""
    setting.synchronise()
    began = perf_counter()
    made = serve_all(requests)
    setting.synchronise()
    seconds = perf_counter() - began
    wanted = sum(request.max_new_tokens for request in requests)
    if made != wanted:
        raise RuntimeError(f"{made} of {wanted} output tokens were made")
    return made / seconds


def run(setting: Setting) -> Iterator[dict[str, Any]]:
    """Rounds of both, in turns; output tokens a second and their ratio.

    If transformers fails, the engine's figures are kept.
    """
    built = build("llama-1b", setting)
    runner = executor(built, setting, graphs=True, ahead=True, max_tokens=1024)
    module = peer_module(built, setting)
    rates: dict[str, list[float]] = {"engine": [], "transformers": []}
    contenders: dict[str, Callable[[list[Request]], int]] = {
        "engine": lambda requests: engine_tokens(built, runner, requests),
        "transformers": lambda requests: peer_tokens(module, requests, setting),
    }
    yield {
        "requests": REQUESTS,
        "shared_tokens": SHARED_TOKENS,
        "own_tokens": OWN_TOKENS,
        "output_tokens": OUTPUT_TOKENS,
        "peer_error": None,
    }
    for number in range(setting.size(ROUNDS, 1) + 1):
        requests = some_requests(setting, built.model.vocab_size, number)
        for name, serve_all in list(contenders.items()):
            if setting.time_is_up:
                break
            try:
                measured = rate(serve_all, requests, setting)
            except Exception as error:
                if name == "engine":
                    raise
                failure = f"{type(error).__name__}: {error}"
                print(f"{name} failed: {failure}")
                yield {"peer_error": failure}
                del contenders[name]
                continue
            print(f"{name}, round {number}: {measured:.0f} output tokens/s", flush=True)
            if number:
                rates[name].append(measured)
                yield {"output_tokens_per_s": rates}
        if all(rates.values()):
            ratio = median(rates["engine"]) / median(rates["transformers"])
            print(f"the engine makes {ratio:.2f} times transformers' tokens", flush=True)
            yield {"ratio": ratio}
