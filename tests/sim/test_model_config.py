"""Shapes read from config.json; the Llama fields are those that Hugging Face publishes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from testbed.sim.hardware import MODELS
from testbed.sim.model_config import read_model_shape

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 128256,
}


def write(folder: Path, config: Any) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    return path


def test_llama_3_1_8b(tmp_path: Path) -> None:
    folder = tmp_path / "llama-3.1-8b"
    folder.mkdir()
    path = write(folder, LLAMA)
    assert read_model_shape(path) == read_model_shape(folder) == MODELS["llama-3.1-8b"]


@pytest.mark.parametrize(
    ("changed", "kv_bytes"),
    [
        ({}, 2 * 32 * 8 * 128 * 2),
        ({"num_key_value_heads": None}, 2 * 32 * 32 * 128 * 2),
        ({"head_dim": 64}, 2 * 32 * 8 * 64 * 2),
        ({"torch_dtype": None, "dtype": "float32"}, 2 * 32 * 8 * 128 * 4),
        ({"sliding_window": 4096, "use_sliding_window": False}, 2 * 32 * 8 * 128 * 2),
        ({"layer_types": ["full_attention"] * 32}, 2 * 32 * 8 * 128 * 2),
    ],
)
def test_bytes_of_a_token(tmp_path: Path, changed: dict[str, Any], kv_bytes: int) -> None:
    assert read_model_shape(write(tmp_path, LLAMA | changed)).kv_bytes_per_token == kv_bytes


def test_qwen2_has_biases_and_a_text_config_is_found(tmp_path: Path) -> None:
    qwen = {name: value for name, value in LLAMA.items() if name != "attention_bias"}
    nested = {"model_type": "other", "text_config": qwen | {"model_type": "qwen2"}}
    assert read_model_shape(write(tmp_path, nested)).attention_bias


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (LLAMA | {"num_local_experts": 8}, "a model with experts"),
        (LLAMA | {"kv_lora_rank": 512}, "a model with latent attention"),
        (LLAMA | {"sliding_window": 4096}, "a model with sliding windows"),
        (LLAMA | {"quantization_config": {"bits": 4}}, "a model with quantized weights"),
        (LLAMA | {"layer_types": ["linear_attention"]}, "layers other than full attention"),
        (LLAMA | {"hidden_size": "big"}, "hidden_size='big': a whole number"),
        (LLAMA | {"num_hidden_layers": True}, "num_hidden_layers=True"),
        (LLAMA | {"torch_dtype": "int4"}, "dtype='int4': one of float32"),
        ({}, "num_attention_heads=None"),
        ([], "an object is needed"),
    ],
)
def test_mistakes(tmp_path: Path, config: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_model_shape(write(tmp_path, config))


def test_broken_and_missing_files(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"config\.json: no such file"):
        read_model_shape(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match="not JSON"):
        read_model_shape(tmp_path)
