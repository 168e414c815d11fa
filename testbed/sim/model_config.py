"""A model's shape from the config.json that Hugging Face keeps beside its weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from testbed.sim.hardware import ModelShape

_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_UNLIKE = {
    "kv_lora_rank": "latent attention",
    "num_local_experts": "experts",
    "num_experts": "experts",
    "n_routed_experts": "experts",
    "quantization_config": "quantized weights",
    "ssm_state_size": "state-space layers",
    "mamba_d_state": "state-space layers",
}
"""What a dense transformer's config does not have: a ModelShape would give wrong sizes."""


def read_model_shape(path: Path) -> ModelShape:
    """The shape in a config.json, or in the one of a folder; the model is named after its folder.

    A text_config inside the config is taken for it, as in models that also see. Where a field is
    missing, transformers' LlamaConfig is followed, and weights are taken to have 2 bytes. Raises
    ValueError for a field that is missing or no positive whole number, and for models of other
    kinds: latent attention, sliding windows, layers that are not attention, experts, quantized
    weights.
    """
    file = path / "config.json" if path.is_dir() else path
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FileNotFoundError(f"{file}: no such file") from None
    except ValueError as error:
        raise ValueError(f"{file}: not JSON ({error})") from None
    if not isinstance(config, dict):
        raise ValueError(f"{file}: an object is needed, as in the config.json of a model")
    text = config.get("text_config", config)
    kind = _kind(config | text)
    if kind is not None:
        raise ValueError(f"{file}: a model with {kind}; dense models with full attention are known")

    def number(name: str, default: int | None = None) -> int:
        value = text.get(name)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{file}: {name}={value!r}: a whole number from 1 on is needed")
        return value

    heads, hidden = number("num_attention_heads"), number("hidden_size")
    dtype = str(text.get("dtype") or text.get("torch_dtype") or "bfloat16")
    if dtype not in _BYTES:
        raise ValueError(f"{file}: dtype={dtype!r}: one of {', '.join(_BYTES)} is needed")
    return ModelShape(
        name=file.resolve().parent.name,
        num_layers=number("num_hidden_layers"),
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=number("num_key_value_heads", heads),
        head_dim=number("head_dim", hidden // heads),
        intermediate_size=number("intermediate_size"),
        vocab_size=number("vocab_size"),
        tied_embeddings=bool(text.get("tie_word_embeddings", False)),
        attention_bias=bool(text.get("attention_bias", text.get("model_type") == "qwen2")),
        bytes_per_parameter=_BYTES[dtype],
    )


def _kind(config: Mapping[str, Any]) -> str | None:
    """What sets the model apart from a dense one with full attention in every layer; else None."""
    found = next((kind for name, kind in _UNLIKE.items() if config.get(name)), None)
    windowed = config.get("sliding_window") and config.get("use_sliding_window", True)
    if set(config.get("layer_types") or ()) - {"full_attention"}:
        return "layers other than full attention"
    return "sliding windows" if found is None and windowed else found
