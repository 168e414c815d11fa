"""Kernel rates as shares of what a copy and a large matrix product reach."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from experiments.gpu.ceilings import copy_bandwidth, matmul_rate
from experiments.gpu.inputs import LLAMA_1B, LLAMA_8B, TINY, Heads, Inputs, make_inputs
from experiments.gpu.setting import Setting
from experiments.gpu.timing import device_seconds
from testbed_kernels.decode import paged_decode
from testbed_kernels.kv_write import write_kv
from testbed_kernels.launch import Launch
from testbed_kernels.prefill import paged_prefill

# (heads, page_size, sequences, KV length)
DECODES = (
    (LLAMA_8B, 16, 64, 4096),
    (LLAMA_8B, 1, 64, 4096),
    (LLAMA_8B, 64, 64, 4096),
    (LLAMA_8B, 16, 1, 32_768),
    (LLAMA_8B, 16, 256, 1024),
    (LLAMA_1B, 16, 64, 4096),
)
SMOKE_DECODES = ((TINY, 16, 2, 40),)
# (heads, page_size, sequences, new tokens, KV length)
PREFILLS = (
    (LLAMA_8B, 16, 1, 8192, 8192),
    (LLAMA_8B, 1, 1, 8192, 8192),
    (LLAMA_8B, 16, 16, 512, 512),
    (LLAMA_8B, 16, 16, 128, 4224),
    (LLAMA_8B, 16, 1, 16_384, 16_384),
    (LLAMA_1B, 16, 1, 8192, 8192),
)
SMOKE_PREFILLS = ((TINY, 16, 2, 20, 40),)
WRITE_TOKENS = 65_536
SMOKE_WRITE_TOKENS = 20


def decode_seconds(
    inputs: Inputs, setting: Setting, launch: Launch | None = None, splits: int | None = None
) -> float:
    """Of one call over all sequences."""
    return device_seconds(
        lambda: paged_decode(
            inputs.query, inputs.key_pages, inputs.value_pages, inputs.batch,
            scale=inputs.scale, launch=launch, splits=splits,
        ),
        setting,
    )  # fmt: skip


def prefill_seconds(inputs: Inputs, setting: Setting, launch: Launch | None = None) -> float:
    """Of one call over all sequences."""
    return device_seconds(
        lambda: paged_prefill(
            inputs.query, inputs.key_pages, inputs.value_pages, inputs.batch,
            scale=inputs.scale, launch=launch,
        ),
        setting,
    )  # fmt: skip


def decode_row(
    setting: Setting, heads: Heads, page_size: int, sequences: int, kv_len: int
) -> dict[str, Any]:
    """Bytes of keys and values read per second."""
    inputs = make_inputs(
        [(1, kv_len)] * sequences, heads, setting.device, page_size=page_size, dtype=setting.dtype
    )
    seconds = decode_seconds(inputs, setting)
    rate = 2 * sequences * kv_len * heads.kv * heads.dim * inputs.query.element_size() / seconds
    share = rate / copy_bandwidth(setting)
    print(
        f"decode  head_dim {heads.dim:3} page {page_size:2} {sequences:3} x {kv_len:6}: "
        f"{seconds * 1e6:8.1f} us {rate / 1e12:5.2f} TB/s {share:5.1%} of copy"
    )
    shape = {"head_dim": heads.dim, "page_size": page_size}
    size = {"sequences": sequences, "kv_len": kv_len}
    return {**shape, **size, "seconds": seconds, "bytes_per_s": rate, "share_of_copy": share}


def prefill_row(
    setting: Setting, heads: Heads, page_size: int, sequences: int, new: int, kv_len: int
) -> dict[str, Any]:
    """FLOP/s of the pairs that the causal test lets through."""
    lengths = [(new, kv_len)] * sequences
    inputs = make_inputs(lengths, heads, setting.device, page_size=page_size, dtype=setting.dtype)
    seconds = prefill_seconds(inputs, setting)
    pairs = sequences * (new * (kv_len - new) + new * (new + 1) // 2)
    rate = 4 * pairs * heads.query * heads.dim / seconds
    share = rate / matmul_rate(setting)
    print(
        f"prefill head_dim {heads.dim:3} page {page_size:2} {sequences:3} x {new:5} of {kv_len:5}: "
        f"{seconds * 1e6:8.1f} us {rate / 1e12:4.0f} TFLOP/s {share:5.1%} of matmul"
    )
    shape = {"head_dim": heads.dim, "page_size": page_size, "sequences": sequences}
    size = {"new_tokens": new, "kv_len": kv_len}
    return {**shape, **size, "seconds": seconds, "flop_per_s": rate, "share_of_matmul": share}


def write_row(setting: Setting) -> dict[str, Any]:
    """Bytes read and written per second by the KV write."""
    heads = LLAMA_8B
    tokens = setting.size(WRITE_TOKENS, SMOKE_WRITE_TOKENS)
    inputs = make_inputs([(tokens, tokens)], heads, setting.device, dtype=setting.dtype)
    key = torch.randn(tokens, heads.kv, heads.dim, device=setting.device, dtype=setting.dtype)
    seconds = device_seconds(
        lambda: write_kv(key, key, inputs.key_pages, inputs.value_pages, inputs.batch), setting
    )
    rate = 4 * key.numel() * key.element_size() / seconds
    share = rate / copy_bandwidth(setting)
    print(f"kv_write {tokens} tokens: {rate / 1e12:.2f} TB/s {share:.1%} of copy")
    return {"tokens": tokens, "seconds": seconds, "bytes_per_s": rate, "share_of_copy": share}


def run(setting: Setting) -> Iterator[dict[str, Any]]:
    """All rates; the first decode and the first prefill are what the targets are about."""
    decodes: list[dict[str, Any]] = []
    for decode in setting.size(DECODES, SMOKE_DECODES):
        if not setting.time_is_up:
            decodes.append(decode_row(setting, *decode))
            yield {"decode": decodes}
    prefills: list[dict[str, Any]] = []
    for prefill in setting.size(PREFILLS, SMOKE_PREFILLS):
        if not setting.time_is_up:
            prefills.append(prefill_row(setting, *prefill))
            yield {"prefill": prefills}
    yield {"kv_write": write_row(setting)}
