"""What the engine generates on the device, held against transformers' own logits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch

from experiments.gpu.setting import Setting
from testbed.core.config import CacheConfig, SchedulerConfig
from testbed.core.request import Request
from testbed.engine.cuda_graphs import DecodeGraphs
from testbed.engine.executor import ModelExecutor
from testbed.engine.kv_pool import KVPool
from testbed.engine.loop import serve
from testbed.engine.model import ATTENTION_NAME, Model, load_model
from testbed.engine.sampling import Sampler
from testbed.engine.triton_attention import TritonAttention
from testbed.policies import registry

FAMILIES = ("tiny-llama", "tiny-qwen2", "tiny-qwen3", "tiny-mistral", "tiny-smollm2")
MARGINS = ((torch.float32, 1e-3), (torch.bfloat16, 0.1))
"""How far below the reference's best logit a token's may be: rounding, and not a wrong answer."""
WAYS = ((False, False), (False, True), (True, False), (True, True))
"""(as CUDA graphs, shared pages read once)"""


class Verdict(NamedTuple):
    """tokens: compared. right: among them, within the margin. largest_gap: in logits."""

    tokens: int
    right: int
    largest_gap: float


def some_requests(setting: Setting) -> list[Request]:
    """Requests of which many share a prefix."""
    draw = np.random.default_rng(0)
    shared = draw.integers(0, 512, 48)
    requests = []
    for id in range(setting.size(16, 3)):
        own = draw.integers(0, 512, int(draw.integers(1, setting.size(100, 10))))
        prompt = np.concatenate((shared, own) if id % 4 else (own,)).astype(np.int32)
        requests.append(Request(id, prompt, max_new_tokens=setting.size(24, 2)))
    return requests


def serve_all(
    model: Model, requests: list[Request], setting: Setting, *, captured: bool, shares: bool
) -> dict[int, Any]:
    """The engine's greedy tokens by request id; memory is scarce, so some are preempted."""
    cache = CacheConfig(num_pages=setting.size(60, 30), page_size=16, insert_at="schedule")
    pool = KVPool(model, cache.num_pages, cache.page_size)
    pool.poison()
    attention = TritonAttention(model, pool, share_prefixes=shares, min_saved_bytes=1)
    graphs = None
    if captured:
        record = setting.size(None, lambda work: work)
        graphs = DecodeGraphs(model, attention, sizes=(1, 4, 16), record=record)
    run = serve(
        requests,
        executor=ModelExecutor(model, pool, attention, Sampler(), graphs),
        cache=cache,
        scheduler=SchedulerConfig(
            chunk_size=64, reserve="ratio", reserve_ratio=0.05, reserve_ratio_floor=0.05
        ),
        policy=registry.scheduling("fcfs"),
        eviction=registry.eviction("lru"),
    )
    return run.outputs


@torch.inference_mode()
def compare(
    model: Model, requests: list[Request], outputs: dict[int, Any], margin: float
) -> Verdict:
    """Teacher-forced: transformers sees the engine's tokens, and says what it would have chosen."""
    tokens = right = 0
    largest = 0.0
    model.module.set_attn_implementation("sdpa")
    try:
        for request in requests:
            output = outputs[request.id].astype(np.int64)
            text = np.concatenate((request.prompt.astype(np.int64), output))
            ids = torch.from_numpy(text)[None].to(model.device)
            logits = model.module(input_ids=ids, use_cache=False).logits[0].float()
            before = logits[len(request.prompt) - 1 : -1]
            chosen = torch.from_numpy(output).to(model.device)[:, None]
            gaps = before.amax(dim=-1) - before.gather(1, chosen)[:, 0]
            gaps = gaps.nan_to_num(torch.inf)
            tokens += len(output)
            right += int((gaps <= margin).sum())
            largest = max(largest, float(gaps.max()))
    finally:
        model.module.set_attn_implementation(ATTENTION_NAME)
    return Verdict(tokens, right, largest)


def run(setting: Setting) -> Iterator[dict[str, Any]]:
    """Every family, dtype and way of decoding; a token outside the margin is wrong."""
    requests = some_requests(setting)
    rows: list[dict[str, Any]] = []
    for dtype, margin in setting.size(MARGINS, MARGINS[:1]):
        for family in setting.size(FAMILIES, FAMILIES[:1]):
            model = load_model(family, dtype=dtype, device=str(setting.device))
            for captured, shares in setting.size(WAYS, WAYS[3:]):
                if setting.time_is_up:
                    break
                outputs = serve_all(model, requests, setting, captured=captured, shares=shares)
                verdict = compare(model, requests, outputs, margin)
                way = f"{'captured' if captured else 'op by op'}{', shared' if shares else ''}"
                print(
                    f"{family:12} {str(dtype).removeprefix('torch.'):8} {way:16} "
                    f"{verdict.right}/{verdict.tokens} right, largest gap {verdict.largest_gap:.1e}"
                )
                rows.append({"family": family, "dtype": str(dtype), "way": way, "margin": margin})
                rows[-1].update(verdict._asdict())
                yield {"rows": rows, "wrong": sum(row["tokens"] - row["right"] for row in rows)}
