"""Which layers turn queries and keys with our kernel; transformers' own stay as they are."""

from __future__ import annotations

import pytest
import torch
from transformers.models.llama import modeling_llama

from testbed.engine.model import build_module, load_model
from testbed.engine.rotary import replace_rotary
from testbed_kernels import cpu_rotary
from testbed_kernels.cpu_library import library
from tests.engine.test_packed_linear import WIDE

pytestmark = pytest.mark.skipif(library() is None, reason="no C compiler (cc) is here")


@pytest.mark.parametrize("family", ["tiny-llama", "tiny-qwen2", "tiny-qwen3", "tiny-mistral"])
def test_the_attention_of_every_family_calls_it(
    monkeypatch: pytest.MonkeyPatch, family: str
) -> None:
    calls: list[int] = []
    kernel = cpu_rotary.cpu_rotary

    def counted(states: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        calls.append(states.shape[1])
        return kernel(states, cos, sin)

    monkeypatch.setattr("testbed.engine.rotary.cpu_rotary", counted)
    model = load_model(family)
    # The trial at loading: two layers, packed and then each of two sequences alone.
    assert calls == 3 * 2 * [model.num_heads, model.num_kv_heads]


def test_transformers_own_function_stays_and_other_models_call_it() -> None:
    theirs = modeling_llama.apply_rotary_pos_emb
    module, other = (build_module(WIDE, dtype=torch.float32, seed=0) for _ in range(2))
    replace_rotary(module)
    assert modeling_llama.apply_rotary_pos_emb is theirs
    layer, untouched = (each.model.layers[0].self_attn for each in (module, other))
    assert "forward" in vars(layer) and "forward" not in vars(untouched)


def test_a_model_has_the_same_logits_and_shorter_types_stay() -> None:
    module = build_module(WIDE, dtype=torch.float32, seed=0).eval()
    module.set_attn_implementation("sdpa")
    # Two rows at once are transformers' own to turn.
    for tokens in (torch.arange(2, 40)[None], torch.arange(2, 40).view(2, 19)):
        with torch.inference_mode():
            fresh = build_module(WIDE, dtype=torch.float32, seed=0).eval()
            fresh.set_attn_implementation("sdpa")
            expected = fresh(tokens, use_cache=False).logits
            replace_rotary(module)
            assert torch.allclose(module(tokens, use_cache=False).logits, expected, atol=1e-5)
    short = build_module(WIDE, dtype=torch.bfloat16, seed=0)
    replace_rotary(short)
    assert "forward" not in vars(short.model.layers[0].self_attn)
