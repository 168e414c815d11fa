"""Models by name and from folders, and the pool that is made for them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from testbed.engine import kv_pool
from testbed.engine import model as model_module
from testbed.engine.device_memory import free_bytes
from testbed.engine.kv_pool import KVPool, pages_that_fit
from testbed.engine.model import build_module, load_model
from tests.engine.building import Models


def test_a_tiny_model_is_its_seed(models: Models) -> None:
    same, other = load_model("tiny-llama"), load_model("tiny-llama", seed=1)
    weights, again, others = (
        m.module.model.embed_tokens.weight for m in (models["tiny-llama"], same, other)
    )
    assert torch.equal(weights, again)
    assert not torch.equal(weights, others)


def test_loading_leaves_the_global_generator_alone() -> None:
    before = torch.random.get_rng_state()
    load_model("tiny-qwen2", seed=5)
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        # layers, heads, key heads, head dim; 2 * layers * key heads * head dim * 4 bytes
        ("tiny-llama", (2, 4, 2, 16, 512)),
        ("tiny-qwen3", (2, 4, 2, 32, 1024)),
        ("tiny-smollm2", (2, 6, 2, 16, 512)),
    ],
)
def test_the_shape_is_the_configs(models: Models, name: str, facts: tuple[int, ...]) -> None:
    model = models[name]
    assert facts == (
        model.num_layers,
        model.num_heads,
        model.num_kv_heads,
        model.head_dim,
        model.kv_bytes_per_token,
    )
    assert (model.vocab_size, model.context_tokens) == (512, 2048)


def test_a_folder_of_safetensors_is_loaded(models: Models, tmp_path: Path) -> None:
    models["tiny-smollm2"].module.save_pretrained(tmp_path)
    loaded = load_model(str(tmp_path))
    for ours, theirs in zip(
        loaded.module.parameters(), models["tiny-smollm2"].module.parameters(), strict=True
    ):
        assert torch.equal(ours, theirs)
    assert loaded.module.config._attn_implementation == "testbed_paged"


def test_pickled_weights_are_refused(models: Models, tmp_path: Path) -> None:
    module = models["tiny-llama"].module
    module.config.save_pretrained(tmp_path)
    torch.save(module.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"cannot be loaded: .*safetensors"):
        load_model(str(tmp_path))


def test_unknown_models_are_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^model='tiny-gpt': one of tiny-llama, .* is needed$"):
        load_model("tiny-gpt")
    with pytest.raises(ValueError, match=r"the folder holds no config\.json"):
        load_model(str(tmp_path))


def save_with_code(models: Models, folder: Path, model_type: str) -> None:
    """A folder whose config names classes of a program that comes with it."""
    module = models["tiny-llama"].module
    module.save_pretrained(folder)
    own = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"}
    config = {**module.config.to_dict(), "auto_map": own, "model_type": model_type}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "own.py").write_text("raise SystemExit('it was run')", encoding="utf-8")


def test_code_that_comes_with_a_known_model_is_not_run(models: Models, tmp_path: Path) -> None:
    save_with_code(models, tmp_path, "llama")
    assert type(load_model(str(tmp_path)).module) is LlamaForCausalLM


def test_a_model_that_is_code_of_its_own_is_refused(models: Models, tmp_path: Path) -> None:
    save_with_code(models, tmp_path, "own")
    with pytest.raises(ValueError, match=r"^model='.*' cannot be loaded: .*custom code"):
        load_model(str(tmp_path))


def test_weights_that_do_not_fit_the_device_say_by_how_much(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(module: nn.Module, device: torch.device) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(nn.Module, "to", full)
    monkeypatch.setattr(model_module, "free_bytes", lambda device: 2**28)
    config = LlamaConfig(
        vocab_size=2**20,
        hidden_size=128,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
    )
    with torch.device("meta"):
        module = build_module(config, dtype=torch.bfloat16, seed=0)
    monkeypatch.setattr(model_module, "build_module", lambda *_, **__: module)
    # Embedding and head of 2**20 rows of 128 bfloat16 each; the rest is small.
    message = r"^model='tiny-llama': its weights need 0\.50 GiB, 0\.25 GiB are free on cuda:1$"
    with pytest.raises(ValueError, match=message):
        load_model("tiny-llama", device="cuda:1")


def test_a_pool_that_does_not_fit_says_by_how_much(
    models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_pool, "free_bytes", lambda device: 2**20)
    # 512 bytes a token, 16 tokens a page: 128 pages in 1 MiB, one of which pads.
    with pytest.raises(MemoryError) as error:
        KVPool(models["tiny-llama"], 4095, 16)
    assert str(error.value) == (
        "4095 pages of 16 tokens of tiny-llama need 0.03 GiB (512 bytes a token), "
        "0.00 GiB are free on cpu: 127 pages fit"
    )
    assert pages_that_fit(models["tiny-llama"], 16, share=0.5) == 63
    KVPool(models["tiny-llama"], 127, 16)
    monkeypatch.setattr(kv_pool, "free_bytes", lambda device: 1000)
    with pytest.raises(MemoryError, match=r"no page of 16 tokens \(8192 bytes\)"):
        pages_that_fit(models["tiny-llama"], 16)


def test_free_memory_is_known_here() -> None:
    assert free_bytes(torch.device("cpu")) > 2**20
