"""Writes GGUF files as llama.cpp does, from its documentation, and a tiny SmolLM2 among them."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from transformers import LlamaConfig

from testbed.engine.model import build_module

TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["h i", "1 2", "hi 1", "o u", "ou r"]


def byte_tokens() -> list[str]:
    """GPT-2's printable stand-in for each byte: itself if it is printable, else one past 255."""
    printable = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return [chr(b) if b in printable else chr(256 + others.index(b)) for b in range(256)]


TOKENS = [*SPECIAL, *byte_tokens(), *(merge.replace(" ", "") for merge in MERGES)]


def string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def value(item: Any) -> bytes:
    """Kind and value: strings, bools, floats, ints, or a list of one of these."""
    if isinstance(item, list):
        encoded = [value(element) for element in item]
        kind = encoded[0][:4]
        return (
            struct.pack("<I", 9)
            + kind
            + struct.pack("<Q", len(item))
            + b"".join(element[4:] for element in encoded)
        )
    if isinstance(item, str):
        return struct.pack("<I", 8) + string(item)
    if isinstance(item, bool):
        return struct.pack("<I?", 7, item)
    if isinstance(item, float):
        return struct.pack("<If", 6, item)
    return struct.pack("<II", 4, item)


def write_gguf(
    path: Path,
    metadata: Mapping[str, Any],
    tensors: Mapping[str, tuple[int, tuple[int, ...], bytes]],
) -> Path:
    """tensors: ggml type, shape with the outermost dimension first, and the stored bytes."""
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(metadata))
    for key, item in metadata.items():
        head += string(key) + value(item)
    body = b""
    for name, (kind, shape, data) in tensors.items():
        head += string(name) + struct.pack("<I", len(shape))
        head += b"".join(struct.pack("<Q", size) for size in reversed(shape))
        head += struct.pack("<IQ", kind, len(body))
        body += data + bytes(-len(data) % 32)
    path.write_bytes(head + bytes(-len(head) % 32) + body)
    return path


def permute(weight: npt.NDArray[np.float32], heads: int) -> npt.NDArray[np.float32]:
    """LlamaModel.permute of llama.cpp's convert_hf_to_gguf.py."""
    halves = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return halves.swapaxes(1, 2).reshape(weight.shape)


def tiny_smollm2(path: Path) -> tuple[Path, Any]:
    """A GGUF file and the transformers model whose weights it holds."""
    config = LlamaConfig(
        vocab_size=len(TOKENS),
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.2,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
        tie_word_embeddings=True,
    )
    import torch

    module = build_module(config, dtype=torch.float32, seed=3)
    tensors = {}
    renamed = {
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
        "model.embed_tokens": "token_embd",
        "model.norm": "output_norm",
    }
    for name, weight in module.named_parameters():
        short = name.replace("model.layers.", "blk.")
        for theirs, ours in renamed.items():
            short = short.replace(theirs, ours)
        array = weight.detach().numpy()
        if "attn_q" in short:
            array = permute(array, 6)
        if "attn_k" in short:
            array = permute(array, 2)
        tensors[short] = (0, array.shape, array.astype("<f4").tobytes())
    metadata = {
        "general.architecture": "llama",
        "llama.block_count": 2,
        "llama.context_length": 256,
        "llama.embedding_length": 48,
        "llama.feed_forward_length": 64,
        "llama.attention.head_count": 6,
        "llama.attention.head_count_kv": 2,
        "llama.rope.freq_base": 100000.0,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.token_type": [3] * 3 + [1] * (len(TOKENS) - 3),
        "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.padding_token_id": 2,
        "tokenizer.chat_template": TEMPLATE,
    }
    return write_gguf(path, metadata, tensors), module
