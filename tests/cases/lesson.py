"""LESSON: the 80-request RAG workload, by prompt order, cache size and serving order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Any

import numpy as np

from testbed.core.request import Request
from testbed.metrics.bounds import sharing_bound
from testbed.metrics.prompt_paths import prompt_paths
from testbed.policies.scheduling.depth_first import Dfs
from testbed.workloads.synthetic.lesson import LessonWorkload, Segment
from tests.cases.direct import EvictionCount, build_cache, serve
from tests.cases.instance import Field, Instance, is_whole, request_of
from tests.cases.serial import UNLIMITED, build_scheduler, serve_waiting

FIELDS: Mapping[str, Field] = {
    "scramble": Field(lambda value: isinstance(value, bool), "true or false"),
    "budget_blocks": Field(lambda value: is_whole(value, 1), "a whole number of blocks from 1"),
}
Prompt = tuple[Segment, ...]


def results(instance: Instance) -> dict[str, Any]:
    """Token hit rates in arrival and in depth-first order, and the sharing bound."""
    workload = LessonWorkload(scrambled=instance["scramble"])
    prompts = workload.segments
    budget = instance["budget_blocks"]
    bound = sharing_bound(prompt_paths(workload, 1, min_computed_tokens=0))
    return {
        "fcfs": _hit_rate(prompts, range(len(prompts)), budget),
        "dfs": _hit_rate(prompts, _depth_first(prompts), budget),
        "upper_bound": round(bound.rate, 4),
    }


def _hit_rate(prompts: tuple[Prompt, ...], order: Iterable[int], budget: int) -> float:
    """Of all prompts; one larger than the budget is not served, so it hits nothing."""
    cache = build_cache(budget, EvictionCount(), by_node=True)
    hit_tokens = 0
    for number in order:
        prompt = prompts[number]
        ends = list(accumulate(segment.num_blocks for segment in prompt))
        if ends[-1] > budget:
            continue
        hit = serve(cache, _in_blocks(number, prompt), ends)
        hit_tokens += sum(
            segment.num_tokens for segment, end in zip(prompt, ends, strict=True) if end <= hit
        )
    total = sum(segment.num_tokens for prompt in prompts for segment in prompt)
    return round(hit_tokens / total, 4)


def _depth_first(prompts: tuple[Prompt, ...]) -> list[int]:
    requests = [_in_blocks(number, prompt) for number, prompt in enumerate(prompts)]
    return serve_waiting(build_scheduler(UNLIMITED, Dfs()), requests).order


def _in_blocks(number: int, prompt: Prompt) -> Request:
    return request_of(number, np.concatenate([segment.block_ids() for segment in prompt]).tolist())
