"""Recorded traces, one token a block: hits and evictions under LRU, and under Belady's rule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from testbed.core.request import Tokens
from testbed.metrics.bounds import clairvoyant_bound
from testbed.metrics.prompt_paths import block_paths
from testbed.workloads.data_folder import find_data_file
from testbed.workloads.traces import MooncakeTrace
from tests.cases.direct import EvictionCount, build_cache, serve
from tests.cases.instance import Field, Instance, MissingData, is_whole, request_of
from tests.cases.serial import UNLIMITED

FIELDS: Mapping[str, Field] = {
    "file": Field(lambda value: isinstance(value, str), "a path inside the data folder"),
    "block_size": Field(lambda value: is_whole(value, 1), "a whole number of tokens from 1"),
    "mode": Field(lambda value: value in ("A", "B", "C"), "A, B or C"),
    "capacity": Field(
        lambda value: value is None or is_whole(value, 1), "a number of blocks from 1, or null"
    ),
}


def results(instance: Instance) -> dict[str, Any]:
    """[hit blocks, hit tokens, evicted blocks] by rule; the last only where it is expected."""
    prompts = _prompts(instance)
    rules = {"lru": _lru, "belady": _belady}
    return {
        name: rule(prompts, instance)[: len(instance[name])]
        for name, rule in rules.items()
        if name in instance
    }


class _Prompt(NamedTuple):
    """blocks: what is stored, one id a block. num_lookup: how many of them may hit."""

    blocks: Tokens
    num_lookup: int
    num_tokens: int


def _prompts(instance: Instance) -> list[_Prompt]:
    try:
        path = find_data_file(instance["file"])
    except FileNotFoundError as error:
        raise MissingData(str(error)) from None
    size, mode = instance["block_size"], instance["mode"]
    prompts = []
    for request in MooncakeTrace(path, block_size=size):
        length = len(request.prompt)
        blocks = request.prompt[::size] // size
        full = length // size
        stored = blocks if mode == "A" else blocks[:full]
        num_lookup = (length - 1) // size if mode == "C" else len(stored)
        prompts.append(_Prompt(stored, num_lookup, length))
    return prompts


def _lru(prompts: list[_Prompt], instance: Instance) -> list[int]:
    evictions = EvictionCount()
    cache = build_cache(instance["capacity"] or UNLIMITED, evictions)
    hit_blocks = hit_tokens = 0
    for number, (blocks, num_lookup, num_tokens) in enumerate(prompts):
        if len(blocks):
            hit = min(serve(cache, request_of(number, blocks), [len(blocks)]), num_lookup)
            hit_blocks += hit
            # The last block may be partial: it weighs what the prompt really holds.
            hit_tokens += min(hit * instance["block_size"], num_tokens)
    return [hit_blocks, hit_tokens, evictions.blocks]


def _belady(prompts: list[_Prompt], instance: Instance) -> list[int]:
    paths = block_paths(
        [prompt.blocks.tolist() for prompt in prompts],
        [prompt.num_tokens for prompt in prompts],
        instance["block_size"],
        min_computed_tokens=1 if instance["mode"] == "C" else 0,
    )
    bound = clairvoyant_bound(paths, instance["capacity"])
    return [bound.hit_pages, bound.hit_tokens, bound.evicted_pages]
