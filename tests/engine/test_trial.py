"""Which models the engine accepts: what it runs right, and what it refuses in one clear error.

Families that the installed transformers does not have are skipped.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest
import torch
from torch import nn
from transformers import CONFIG_MAPPING, PreTrainedConfig

from testbed.core.config import CacheConfig, SchedulerConfig
from testbed.engine.model import Model, build_module, wrap_module
from testbed.engine.packed_linear import PackedLinear, pack_linear_layers
from testbed.engine.rms_norm import RMSNorm, replace_norms
from tests.engine.building import FAMILIES, Models, reference, run_engine, some_requests

SMALL = MappingProxyType(
    {
        "vocab_size": 512,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "initializer_range": 0.2,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }
)
EXPERTS = MappingProxyType(
    {
        "num_local_experts": 4,
        "num_experts": 4,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "n_group": 1,
        "topk_group": 1,
    }
)
CPU = torch.device("cpu")


def config_of(family: str, **changes: Any) -> PreTrainedConfig:
    if family not in CONFIG_MAPPING:
        pytest.skip(f"this transformers has no {family}")
    config: PreTrainedConfig = CONFIG_MAPPING[family](**{**SMALL, **changes})
    return config


def loaded(config: PreTrainedConfig, dtype: torch.dtype = torch.float32) -> Model:
    """As load_model does it."""
    module = build_module(config, dtype=dtype, seed=0)
    pack_linear_layers(module)
    replace_norms(module)
    return wrap_module(config.model_type, module, CPU)


def pristine(model: Model) -> Model:
    """The same weights in transformers' own layers and attention."""
    module = build_module(model.module.config, dtype=torch.float32, seed=0).eval()
    module.set_attn_implementation("sdpa")
    assert not any(isinstance(layer, RMSNorm | PackedLinear) for layer in module.modules())
    return replace(model, module=module, last_mlp=None)


def check_tokens(model: Model) -> None:
    requests = some_requests(4)
    cache = CacheConfig(num_pages=160, page_size=4)
    run = run_engine(model, requests, cache, SchedulerConfig(chunk_size=40), policy="lpm")
    own = pristine(model)
    for request in requests:
        tokens, logits = reference(own, request)
        best = logits.topk(2, dim=-1).values
        assert float((best[:, 0] - best[:, 1]).min()) > 1e-3, "too close for a fair test"
        assert run.outputs[request.id].tolist() == tokens.tolist()


@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_are_those_of_untouched_transformers(models: Models, family: str) -> None:
    check_tokens(models[family])


def test_packed_weights_do_not_change_tokens() -> None:
    model = loaded(config_of("llama", hidden_size=256, initializer_range=0.1))
    assert any(isinstance(layer, PackedLinear) for layer in model.module.modules())
    check_tokens(model)


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("gemma", {"head_dim": 16}),
        ("gemma3_text", {"head_dim": 16, "sliding_window": 24}),
        ("phi3", {}),
        ("olmo2", {}),
        ("olmo3", {"sliding_window": 24}),
        ("granite", {}),
        ("starcoder2", {"sliding_window": 24}),
        ("cohere2", {"sliding_window": 24, "logit_scale": 1.0}),
        ("mixtral", {"num_local_experts": 4}),
        ("qwen3_moe", {"head_dim": 16, "initializer_range": 0.3, **EXPERTS}),
    ],
)
def test_other_families_give_transformers_tokens(family: str, changes: dict[str, Any]) -> None:
    check_tokens(loaded(config_of(family, **changes)))


HYBRID = MappingProxyType({"layer_types": ["linear_attention", "full_attention"]})
LATENT = MappingProxyType({**EXPERTS, "num_key_value_heads": 4, "first_k_dense_replace": 2})


@pytest.mark.parametrize(
    ("family", "changes", "reason"),
    [
        ("gpt_oss", EXPERTS, "GptOssAttention asks for s_aux, which is not built"),
        ("gemma2", {"head_dim": 16}, "Gemma2Attention asks for softcap, which is not built"),
        ("doge", {}, "DogeAttention asks for attention_mask, which is not built"),
        ("llama4_text", {"head_dim": 16, **EXPERTS}, "layer_types chunked_attention: "),
        ("minimax", {"head_dim": 16, **EXPERTS, **HYBRID}, "layer_types linear_attention: "),
        ("lfm2", {"layer_types": ["conv", "full_attention"]}, "layer_types conv: "),
        ("recurrent_gemma", {"head_dim": 16}, ""),
        ("diffllama", {}, r"attention of layers \[0, 0, 1, 1\]: each of 0 to 1 once is needed"),
        ("qwen3_next", {"head_dim": 16, **EXPERTS, **HYBRID}, ""),
        ("qwen3_5_text", {"head_dim": 16, **HYBRID}, ""),
        ("granitemoehybrid", {**EXPERTS, "layer_types": ["mamba", "attention"]}, ""),
        ("deepseek_v3", LATENT, r"layer 0 has queries .* of \[12, 4, 192\]; its config promises"),
        ("longcat_flash", {**EXPERTS, "num_key_value_heads": 4}, "layer 0 has queries "),
        ("kimi_linear", EXPERTS, ""),
        ("gemma4_unified_text", {"head_dim": 16}, ""),
        ("nemotron", {"head_dim": 16}, "NemotronAttention does not get attention_step passed on"),
        ("bloom", {}, "its attention cannot be replaced"),
        ("bert", {"num_key_value_heads": 4}, "packed with another sequence, its logits are off"),
        (
            "phimoe",
            {**EXPERTS, "sliding_window": 24},
            "sliding_window=24 reaches none of its attention layers",
        ),
    ],
)
def test_what_cannot_run_is_refused_when_it_is_loaded(
    family: str, changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ValueError, match=f"^model='.*': the engine cannot run .*: {reason}") as why:
        loaded(config_of(family, **changes))
    assert "\n" not in str(why.value)


@pytest.mark.parametrize("nested", [False, True])
def test_angles_that_depend_on_the_batch_are_refused(nested: bool) -> None:
    rope: dict[str, Any] = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    module = build_module(config_of("llama", rope_parameters=rope), dtype=torch.float32, seed=0)
    if nested:
        module.config.rope_parameters = {"full_attention": rope}
    with pytest.raises(ValueError, match="rope_type 'dynamic' cannot be used"):
        wrap_module("stretched", module, CPU)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", ["llama", "mistral", "qwen3_moe"])
def test_rounding_is_no_reason_to_refuse(family: str, dtype: torch.dtype) -> None:
    assert loaded(config_of(family, head_dim=16, **EXPERTS), dtype).dtype == dtype


class Mixing(nn.Module):
    """A layer that adds what the token before it was, across the ends of packed sequences."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.inner(hidden) + 9 * hidden.roll(1, dims=1)
        return output


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_layer_that_mixes_packed_sequences_is_noticed(dtype: torch.dtype) -> None:
    module = build_module(config_of("llama"), dtype=dtype, seed=0)
    first = module.model.layers[0]
    first.mlp = Mixing(first.mlp)
    with pytest.raises(ValueError, match="packed with another sequence, its logits are off by"):
        wrap_module("mixing", module, CPU)


def test_weights_that_are_not_numbers_are_noticed() -> None:
    module = build_module(config_of("llama"), dtype=torch.float32, seed=0)
    with torch.no_grad():
        module.model.norm.weight[0] = torch.nan
    with pytest.raises(ValueError, match="logits are off by nan of their norm"):
        wrap_module("broken", module, CPU)


def test_the_trial_leaves_no_trace(models: Models) -> None:
    model = models["tiny-mistral"]
    assert model.module.config._attn_implementation == "testbed_paged"
    assert not model.module.training
