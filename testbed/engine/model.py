"""Hugging Face decoder models whose attention reads and writes a paged KV pool.

The modelling code is transformers' own. Its attention layers look their kernel up by name; ours
hands each layer's queries, keys and values to the step object that travels with the forward call.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import torch
from transformers import (
    AttentionInterface,
    AutoModelForCausalLM,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

from testbed.engine.device_memory import free_bytes, gib
from testbed.engine.last_mlp import LastMlp
from testbed.engine.packed_linear import pack_linear_layers
from testbed.engine.rms_norm import replace_norms
from testbed.engine.rotary import replace_rotary
from testbed.engine.trial import try_out

ATTENTION_NAME = "testbed_paged"
SMOLLM2 = "smollm2"
_WITHOUT_EFFECT = ("dropout", "position_ids")
"""What layers pass to their attention although it changes nothing here."""
_LENGTH_BOUND_ROPES = ("dynamic", "longrope")
"""Angles that depend on the longest sequence of a batch, so cached keys would not stay valid."""

_TINY: Mapping[str, Any] = MappingProxyType(
    {
        "vocab_size": 512,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 2048,
        # Wide enough that attention is far from uniform and top logits lie far apart.
        "initializer_range": 0.2,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }
)


def _tiny_configs() -> dict[str, PreTrainedConfig]:
    smollm2 = {"num_attention_heads": 6, "num_key_value_heads": 2, "hidden_size": 96}
    return {
        "tiny-llama": LlamaConfig(**_TINY),
        "tiny-qwen2": Qwen2Config(**_TINY),
        "tiny-qwen3": Qwen3Config(**_TINY, head_dim=32),
        "tiny-mistral": MistralConfig(**_TINY, sliding_window=24),
        "tiny-smollm2": LlamaConfig(**{**_TINY, **smollm2}, tie_word_embeddings=True),
    }


class AttentionStep(Protocol):
    """One step's attention: every layer of the model calls it once."""

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scaling: float,
        window: int | None,
    ) -> torch.Tensor:
        """Write the new keys and values to the pool, then attend to everything up to each query.

        query: [tokens, heads, head_dim]; key, value: [tokens, kv_heads, head_dim], the step's new
        tokens in row order. window: each query sees so many newest tokens; None for all. Returns
        [tokens, heads, head_dim].
        """
        ...


@dataclass(frozen=True)
class Model:
    """A causal language model in evaluation mode, and what the engine must know of it.

    context_tokens: positions it was made for. last_mlp: None where the last layer has another kind.
    """

    name: str
    module: Any
    vocab_size: int
    context_tokens: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device
    last_mlp: LastMlp | None

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of one token's keys and values over all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * self.dtype.itemsize

    def forward(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        logit_rows: torch.Tensor,
        step: AttentionStep,
    ) -> torch.Tensor:
        """Logits after some of the tokens, float32 [rows, vocab_size].

        tokens, positions: int64[tokens], all rows of the step back to back. logit_rows: int64, the
        places in `tokens` whose successor is wanted.
        """
        wanted = nullcontext() if self.last_mlp is None else self.last_mlp.only(logit_rows)
        with wanted:
            output = self.module(
                input_ids=tokens[None],
                position_ids=positions[None],
                use_cache=False,
                logits_to_keep=logit_rows,
                attention_step=step,
            )
        logits: torch.Tensor = output.logits[0].float()
        return logits


def load_model(
    name: str, *, dtype: torch.dtype = torch.float32, device: str = "cpu", seed: int = 0
) -> Model:
    """A model of the Hugging Face hub, of a local folder, or a tiny one with random weights.

    name: a hub id, a folder with config.json and safetensors weights, `smollm2` once `testbed model
    smollm2` has fetched it, or one of tiny-llama, tiny-qwen2, tiny-qwen3, tiny-mistral and
    tiny-smollm2, which `seed` initialises. Code that comes with a model is never run. ValueError if
    the name is unknown, the weights do not fit the device, or the engine cannot run the model: each
    layer needs full or sliding-window attention, and nothing else may pass from token to token.
    """
    AttentionInterface.register(ATTENTION_NAME, _paged_attention)
    place = torch.device(device)
    if name.startswith("tiny-"):
        configs = _tiny_configs()
        if name not in configs:
            raise ValueError(f"model={name!r}: one of {', '.join(configs)} is needed")
        module = build_module(configs[name], dtype=dtype, seed=seed)
    elif name == SMOLLM2:
        folder = cache_folder() / SMOLLM2
        if not folder.is_dir():
            raise ValueError(
                f"model={name!r} is not in {folder}: `testbed model {SMOLLM2}` puts it there"
            )
        module = _load_weights(name, str(folder), dtype)
    else:
        module = _load_weights(name, name, dtype)
    _place_weights(name, module, place)
    pack_linear_layers(module)
    replace_norms(module)
    replace_rotary(module)
    return wrap_module(name, module, place)


def cache_folder() -> Path:
    """Where fetched models are kept: TESTBED_CACHE, else ~/.cache/radix-testbed."""
    return Path(os.environ.get("TESTBED_CACHE") or "~/.cache/radix-testbed").expanduser()


def build_module(config: PreTrainedConfig, *, dtype: torch.dtype, seed: int) -> Any:
    """A transformers model with the engine's attention and random weights drawn from the seed."""
    AttentionInterface.register(ATTENTION_NAME, _paged_attention)
    # A model keeps its config and writes to it.
    config = deepcopy(config)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        loader: Any = AutoModelForCausalLM
        return loader.from_config(
            config, dtype=dtype, attn_implementation=ATTENTION_NAME, trust_remote_code=False
        )


def _load_weights(name: str, source: str, dtype: torch.dtype) -> Any:
    if Path(source).is_dir() and not (Path(source) / "config.json").is_file():
        raise ValueError(f"model={name!r}: the folder holds no config.json")
    try:
        loader: Any = AutoModelForCausalLM
        return loader.from_pretrained(
            source,
            dtype=dtype,
            attn_implementation=ATTENTION_NAME,
            use_safetensors=True,
            trust_remote_code=False,
        )
    except Exception as error:
        raise ValueError(f"model={name!r} cannot be loaded: {_reason(error)}") from error


def _place_weights(name: str, module: Any, device: torch.device) -> None:
    free = free_bytes(device)
    try:
        module.to(device)
    except torch.OutOfMemoryError as error:
        needed = sum(tensor.nbytes for tensor in (*module.parameters(), *module.buffers()))
        raise ValueError(
            f"model={name!r}: its weights need {gib(needed)}, {gib(free)} are free on {device}"
        ) from error


def wrap_module(name: str, module: Any, device: torch.device) -> Model:
    """Describe a transformers model that uses the engine's attention; tries whether it can run.

    Its last layer's MLP obeys the LastMlp from then on. ValueError if it cannot.
    """
    try:
        model = _described(name, module, device)
        try_out(model)
    except Exception as error:
        raise ValueError(
            f"model={name!r}: the engine cannot run {type(module).__name__}: {_reason(error)}"
        ) from error
    return model


def _reason(error: Exception) -> str:
    """In one line; modelling code is of many hands, and fails as it likes."""
    text = (str(error).strip().splitlines() or [""])[0]
    return text if isinstance(error, ValueError | OSError) else f"{type(error).__name__}: {text}"


def _described(name: str, module: Any, device: torch.device) -> Model:
    config = module.config
    if not getattr(module, "_supports_attention_backend", False):
        raise ValueError("its attention cannot be replaced")
    rope = getattr(config, "rope_parameters", None) or {}
    # Some have parameters for each type of layers.
    for parameters in (rope, *rope.values()):
        if isinstance(parameters, Mapping) and parameters.get("rope_type") in _LENGTH_BOUND_ROPES:
            raise ValueError(
                f"rope_type {parameters['rope_type']!r} cannot be used with a KV cache pool"
            )
    heads = config.num_attention_heads
    return Model(
        name=name,
        module=module.eval(),
        vocab_size=config.vocab_size,
        context_tokens=config.max_position_embeddings,
        num_layers=config.num_hidden_layers,
        num_heads=heads,
        num_kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
        dtype=module.dtype,
        device=device,
        last_mlp=_last_mlp(module),
    )


def _last_mlp(module: Any) -> LastMlp | None:
    layers = getattr(module.get_decoder(), "layers", None)
    mlp: Any = getattr(layers[-1], "mlp", None) if layers else None
    # Of the other kinds some return more than a tensor, and some mix tokens.
    return LastMlp(mlp) if hasattr(mlp, "gate_proj") else None


def _paged_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float,
    attention_step: AttentionStep | None = None,
    sliding_window: int | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """What a transformers attention layer calls: [1, heads, tokens, head_dim] in, tokens first out.

    ValueError for whatever else a layer wants of its attention.
    """
    if attention_step is None:
        raise ValueError(f"{type(module).__name__} does not get attention_step passed on")
    # transformers makes no mask, as none is registered under our name; some models do themselves.
    for name, wish in (("attention_mask", attention_mask), *others.items()):
        if wish is not None and wish is not False and name not in _WITHOUT_EFFECT:
            raise ValueError(f"{type(module).__name__} asks for {name}, which is not built")
    attended = attention_step.attend(
        module.layer_idx,
        query[0].transpose(0, 1),
        key[0].transpose(0, 1),
        value[0].transpose(0, 1),
        scaling,
        sliding_window,
    )
    return attended[None], None
