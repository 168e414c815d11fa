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

from testbed.engine.last_mlp import LastMlp
from testbed.engine.packed_linear import pack_linear_layers
from testbed.engine.rms_norm import replace_norms

ATTENTION_NAME = "testbed_paged"
SMOLLM2 = "smollm2"

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
    the name is unknown or the engine cannot run the model.
    """
    AttentionInterface.register(ATTENTION_NAME, _paged_attention)
    place = torch.device(device)
    if name.startswith("tiny-"):
        configs = _tiny_configs()
        if name not in configs:
            raise ValueError(f"model={name!r}: one of {', '.join(configs)} is needed")
        module = build_module(configs[name], dtype=dtype, seed=seed).to(place)
    elif name == SMOLLM2:
        folder = cache_folder() / SMOLLM2
        if not folder.is_dir():
            raise ValueError(
                f"model={name!r} is not in {folder}: `testbed model {SMOLLM2}` puts it there"
            )
        module = _load_weights(str(folder), dtype, place)
    else:
        module = _load_weights(name, dtype, place)
    pack_linear_layers(module)
    replace_norms(module)
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


def _load_weights(name: str, dtype: torch.dtype, device: torch.device) -> Any:
    if Path(name).is_dir() and not (Path(name) / "config.json").is_file():
        raise ValueError(f"model={name!r}: the folder holds no config.json")
    try:
        loader: Any = AutoModelForCausalLM
        return loader.from_pretrained(
            name,
            dtype=dtype,
            attn_implementation=ATTENTION_NAME,
            use_safetensors=True,
            trust_remote_code=False,
        ).to(device)
    except OSError as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"model={name!r} cannot be loaded: {reason}") from error


def wrap_module(name: str, module: Any, device: torch.device) -> Model:
    """Describe a transformers model that uses the engine's attention; checks that it can run.

    Its last layer's MLP obeys the LastMlp from then on.
    """
    config = module.config
    if not getattr(module, "_supports_attention_backend", False):
        raise ValueError(
            f"model={name!r}: the attention of {type(module).__name__} cannot be replaced"
        )
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if rope in ("dynamic", "longrope"):
        # Their angles depend on the longest sequence of a batch, so cached keys would not stay
        # valid.
        raise ValueError(f"model={name!r}: rope_type {rope!r} cannot be used with a KV cache pool")
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
    softcap: float | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """What a transformers attention layer calls: [1, heads, tokens, head_dim] in, tokens first out.

    A mask is never made, as none is registered under our name.
    """
    if attention_step is None:
        raise ValueError(f"{type(module).__name__} does not pass attention_step on to its layers")
    if softcap is not None:
        raise ValueError(f"{type(module).__name__} caps its attention logits, which is not built")
    attended = attention_step.attend(
        module.layer_idx,
        query[0].transpose(0, 1),
        key[0].transpose(0, 1),
        value[0].transpose(0, 1),
        scaling,
        sliding_window,
    )
    return attended[None], None
