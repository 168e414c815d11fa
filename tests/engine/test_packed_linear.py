"""Linear layers in oneDNN's layout against a float64 product; what is packed and what merged."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers import LlamaConfig

from testbed.engine.model import build_module
from testbed.engine.packed_linear import (
    MergedLinears,
    MergedPart,
    PackedLinear,
    pack_linear_layers,
)

WIDE = LlamaConfig(
    vocab_size=600,
    hidden_size=256,
    intermediate_size=320,
    num_hidden_layers=1,
    num_attention_heads=4,
    num_key_value_heads=1,
    bos_token_id=None,
    eos_token_id=None,
    pad_token_id=None,
    tie_word_embeddings=True,
)


@pytest.mark.parametrize("rows", [1, 7, 64, 301])
@pytest.mark.parametrize("bias", [False, True])
def test_the_product_is_that_of_the_layer_it_was_made_from(rows: int, bias: bool) -> None:
    generator = torch.Generator().manual_seed(rows)
    linear = nn.Linear(288, 257, bias=bias)
    inputs = torch.randn(1, rows, 288, generator=generator)
    expected = inputs.double() @ linear.weight.detach().double().T
    if linear.bias is not None:
        expected += linear.bias.detach().double()
    with torch.inference_mode():
        ours = PackedLinear(linear)(inputs)
    assert ours.shape == (1, rows, 257)
    assert torch.allclose(ours.double(), expected, atol=1e-5)


def test_large_layers_are_packed_and_the_tied_embedding_stays() -> None:
    module = build_module(WIDE, dtype=torch.float32, seed=0)
    embedding = module.model.embed_tokens.weight.detach().clone()
    pack_linear_layers(module)
    packed = {name for name, part in module.named_modules() if isinstance(part, PackedLinear)}
    attention, mlp = "model.layers.0.self_attn", "model.layers.0.mlp"
    assert packed == {
        "lm_head",
        f"{attention}.o_proj",
        f"{mlp}.down_proj",
    }
    merged = {name for name, part in module.named_modules() if isinstance(part, MergedPart)}
    assert merged == {
        *(f"{attention}.{name}" for name in ("q_proj", "k_proj", "v_proj")),
        *(f"{mlp}.{name}" for name in ("gate_proj", "up_proj")),
    }
    assert torch.equal(module.model.embed_tokens.weight, embedding)


@pytest.mark.parametrize("bias", [False, True])
def test_merged_layers_give_what_each_of_them_gives(bias: bool) -> None:
    torch.manual_seed(0)
    linears = [nn.Linear(64, width, bias=bias) for width in (48, 16, 32)]
    merged = MergedLinears(linears)
    parts = [MergedPart(merged, place) for place in range(3)]
    with torch.inference_mode():
        for _ in range(2):
            inputs = torch.randn(1, 5, 64)
            for part, linear in zip(parts, linears, strict=True):
                assert torch.allclose(part(inputs), linear(inputs), atol=1e-5)


def test_merged_layers_never_answer_for_another_tensor() -> None:
    linears = [nn.Linear(8, 8, bias=False) for _ in range(3)]
    merged = MergedLinears(linears)
    with torch.inference_mode():
        inputs = torch.ones(1, 2, 8)
        for place in range(3):
            merged.output(place, inputs)
        # The same object with other contents, as the memory of a captured step would be.
        inputs.mul_(2)
        assert torch.allclose(merged.output(0, inputs), linears[0](inputs), atol=1e-5)
        other = torch.randn(1, 2, 8)
        assert torch.allclose(merged.output(1, other), linears[1](other), atol=1e-5)


def test_layers_of_which_only_some_have_a_bias_stay_apart() -> None:
    block = nn.Module()
    names = ("q_proj", "k_proj", "v_proj")
    for name in names:
        setattr(block, name, nn.Linear(256, 256, bias=name == "q_proj"))
    pack_linear_layers(block)
    assert all(isinstance(getattr(block, name), PackedLinear) for name in names)


def test_a_packed_model_has_the_same_logits() -> None:
    module = build_module(WIDE, dtype=torch.float32, seed=0).eval()
    module.set_attn_implementation("sdpa")
    tokens = torch.arange(2, 40)[None]
    with torch.inference_mode():
        expected = module(tokens, use_cache=False).logits
        pack_linear_layers(module)
        assert torch.allclose(module(tokens, use_cache=False).logits, expected, atol=1e-5)


def test_other_dtypes_are_left_alone() -> None:
    module = build_module(WIDE, dtype=torch.bfloat16, seed=0)
    pack_linear_layers(module)
    assert not any(isinstance(part, PackedLinear) for part in module.modules())
