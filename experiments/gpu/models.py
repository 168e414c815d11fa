"""Random-weight models of known shapes, built on the device, and the engine around them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from transformers import LlamaConfig

from experiments.gpu.setting import Setting
from testbed.engine.cuda_graphs import DecodeGraphs, Recorder
from testbed.engine.executor import ModelExecutor
from testbed.engine.kv_pool import KVPool, pages_that_fit
from testbed.engine.model import Model, build_module, wrap_module
from testbed.engine.sampling import Sampler
from testbed.engine.triton_attention import TritonAttention

PAGE_SIZE = 16
POOL_SHARE = 0.8
"""Of the memory that the weights leave; the rest is for activations, logits and graphs."""
POOL_TOKENS = 1_200_000
"""No part needs more, and filling a larger pool takes time."""
GRAPH_SIZES = (1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256)


class ModelShape(NamedTuple):
    """What a Llama is made of; tied: whether its input embedding is its head."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    vocab: int
    tied: bool


SHAPES = (
    ("llama-8b", ModelShape(4096, 14_336, 32, 32, 8, 128_256, False)),
    ("llama-1b", ModelShape(2048, 8192, 16, 32, 8, 128_256, True)),
)
SMOKE_SHAPE = ModelShape(64, 128, 1, 2, 1, 512, True)


class Built(NamedTuple):
    """A model and its pool, full of random keys and values."""

    model: Model
    pool: KVPool
    attention: TritonAttention


def build(name: str, setting: Setting) -> Built:
    """A model of one of SHAPES; a tiny one in a smoke run."""
    shape = setting.size(dict(SHAPES)[name], SMOKE_SHAPE)
    config = LlamaConfig(
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        vocab_size=shape.vocab,
        tie_word_embeddings=shape.tied,
        max_position_embeddings=65_536,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    with setting.device:
        module = build_module(config, dtype=setting.dtype, seed=0)
    model = wrap_module(name, module, setting.device)
    tokens = setting.size(POOL_TOKENS, 600)
    pages = min(pages_that_fit(model, PAGE_SIZE, POOL_SHARE), tokens // PAGE_SIZE)
    pool = KVPool(model, pages, PAGE_SIZE)
    for tensor in (*pool.keys, *pool.values):
        tensor.normal_()
    return Built(model, pool, TritonAttention(model, pool))


def executor(
    built: Built, setting: Setting, *, graphs: bool, max_tokens: int, ahead: bool = False
) -> ModelExecutor:
    """What runs batches, decodes captured or op by op.

    max_tokens: of the longest sequence of a captured step. ahead: capture now, not when needed.
    """
    captured = None
    if graphs:
        # In a smoke run a captured step is the step itself.
        record: Recorder | None = setting.size(None, lambda work: work)
        captured = DecodeGraphs(
            built.model,
            built.attention,
            sizes=setting.size(GRAPH_SIZES, (1, 2)),
            max_tokens=max_tokens,
            record=record,
        )
        if ahead:
            captured.capture()
    return ModelExecutor(built.model, built.pool, built.attention, Sampler(), captured)


def weight_bytes_per_step(model: Model) -> int:
    """Bytes of weights that a decode step must read: all but an input embedding of its own."""
    total = sum(p.numel() * p.element_size() for p in model.module.parameters())
    embedding: torch.Tensor = model.module.get_input_embeddings().weight
    head: torch.Tensor = model.module.get_output_embeddings().weight
    if embedding is head:
        return total
    return total - embedding.numel() * embedding.element_size()
