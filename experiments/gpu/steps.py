"""Step times of whole models over a grid: for calibration, and held to the memory floor.

Steps are run by the engine's executor on made-up sequences, so that a time includes preparing the
batch and sampling, but no scheduling.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch

from experiments.gpu.ceilings import copy_bandwidth
from experiments.gpu.models import PAGE_SIZE, SHAPES, Built, build, executor, weight_bytes_per_step
from experiments.gpu.setting import Setting
from testbed.core.batch import Batch, Prefill, shape_of
from testbed.core.request import Request, Sequence
from testbed.engine.executor import ModelExecutor

REPEATS = 7
DECODE_ROWS = (1, 8, 32, 64, 128, 256)
DECODE_CONTEXTS = (128, 1024, 4096, 16_384)
CHUNKS = (128, 512, 2048, 8192)
PREFIXES = (0, 2048, 8192)
MIXED = ((32, 1024, 512), (32, 1024, 2048), (128, 1024, 512), (128, 4096, 2048))
"""(decode rows, their context, tokens of a whole prompt beside them)"""
MAX_TOKENS = 16_392


class Point(NamedTuple):
    """A step: decode rows of one context, and a chunk of one prompt after its prefix."""

    rows: int = 0
    context: int = 0
    chunk: int = 0
    prefix: int = 0

    @property
    def pages(self) -> int:
        """What it occupies of the pool."""
        prompt = -(-(self.chunk + self.prefix) // PAGE_SIZE) if self.chunk else 0
        return self.rows * -(-self.context // PAGE_SIZE) + prompt


def grid(setting: Setting) -> Iterator[Point]:
    """Decodes, then chunks, then mixed steps."""
    if setting.smoke:
        yield from (Point(rows=2, context=20), Point(chunk=20, prefix=16), Point(1, 20, 20, 0))
        return
    for context in DECODE_CONTEXTS:
        for rows in DECODE_ROWS:
            yield Point(rows=rows, context=context)
    for prefix in PREFIXES:
        for chunk in CHUNKS:
            yield Point(chunk=chunk, prefix=prefix)
    for rows, context, chunk in MIXED:
        yield Point(rows, context, chunk)


def make_batch(point: Point, built: Built, draw: np.random.Generator) -> Batch:
    """A batch of made-up sequences on pages drawn from the whole pool."""
    pages = draw.permutation(built.pool.num_pages)[: point.pages].astype(np.int32)
    taken = 0

    def sequence(index: int, prompt_tokens: int, computed: int, tokens: int) -> Sequence:
        nonlocal taken
        prompt = draw.integers(0, built.model.vocab_size, prompt_tokens).astype(np.int32)
        made = Sequence(Request(index, prompt, max_new_tokens=2), index)
        made.num_joined_computed = computed
        made.num_pages = -(-tokens // PAGE_SIZE)
        made.pages = pages[taken : taken + made.num_pages]
        taken += made.num_pages
        return made

    decodes = []
    for index in range(point.rows):
        # The newest token is fed back: it is the context's last.
        decoding = sequence(index, point.context - 1, point.context - 1, point.context)
        assert decoding.generated is not None
        decoding.generated.append(int(draw.integers(0, built.model.vocab_size)))
        decoding.num_joined_generated = 1
        decodes.append(decoding)
    prefills = []
    if point.chunk:
        end = point.prefix + point.chunk
        prompt = sequence(point.rows, end, point.prefix, end)
        prefills.append(Prefill(prompt, point.prefix, point.chunk))
    shape = shape_of(decodes, point.rows * point.context, 0, prefills)
    return Batch(1, decodes, prefills, shape)


def measure(point: Point, built: Built, runner: ModelExecutor, setting: Setting) -> dict[str, Any]:
    """The step's shape, its seconds each time, and the medians of these and of its parts."""
    batch = make_batch(point, built, np.random.default_rng(0))
    runner.execute(batch)
    seconds, parts = [], []
    for _ in range(setting.size(REPEATS, 1)):
        seconds.append(runner.execute(batch).seconds)
        parts.append(runner.parts)
    prepare, forward, sample = (median(column) for column in zip(*parts, strict=True))
    return {
        **point._asdict(),
        "seconds_each": seconds,
        "seconds": median(seconds),
        "prepare_s": prepare,
        "forward_s": forward,
        "sample_s": sample,
        **batch.shape._asdict(),
    }


def model_rows(name: str, setting: Setting) -> Iterator[dict[str, Any]]:
    """All points of one model that fit; decodes op by op and as CUDA graphs. Yields what there is
    after each point."""
    built = build(name, setting)
    weights = weight_bytes_per_step(built.model)
    by_op, captured = (
        executor(built, setting, graphs=graphs, max_tokens=MAX_TOKENS) for graphs in (False, True)
    )
    rows: list[dict[str, Any]] = []
    left_out: list[dict[str, Any]] = []
    facts = {
        "weight_bytes_per_step": weights,
        "kv_bytes_per_token": built.model.kv_bytes_per_token,
        "dtype": str(setting.dtype).removeprefix("torch."),
        "pool_pages": built.pool.num_pages,
    }
    for point in grid(setting):
        if setting.time_is_up or point.pages > built.pool.num_pages:
            left_out.append(point._asdict())
            continue
        measured = measure(point, built, by_op, setting)
        line = f"{name} {point.rows:3} x {point.context:5} + {point.chunk:4} after {point.prefix:4}"
        line += f": {measured['seconds'] * 1e3:8.2f} ms"
        if not point.chunk:
            kv_bytes = point.rows * point.context * built.model.kv_bytes_per_token
            floor = (weights + kv_bytes) / copy_bandwidth(setting)
            graph = measure(point, built, captured, setting)
            measured["graph_seconds_each"] = graph["seconds_each"]
            measured["graph_seconds"] = graph["seconds"]
            measured["graph_forward_s"] = graph["forward_s"]
            measured["memory_floor_s"] = floor
            line += f", captured {graph['seconds'] * 1e3:8.2f} ms, "
            line += f"{graph['seconds'] / floor:5.2f}x of its memory floor"
        print(line, flush=True)
        rows.append(measured)
        yield {**facts, "rows": rows}
    yield {**facts, "rows": rows, "left_out": left_out}


def run(setting: Setting) -> Iterator[dict[str, Any]]:
    """Both models; the first one's pool is given back before the second is built."""
    models: dict[str, Any] = {}
    for name, _ in SHAPES:
        for measured in model_rows(name, setting):
            models[name] = measured
            yield {"models": models}
        # The engine patches the last layer, so that a model is part of a cycle.
        gc.collect()
        if setting.device.type == "cuda":
            torch.cuda.empty_cache()
