"""Kernel rates as shares of what a copy and a large matrix product reach."""

from __future__ import annotations

from typing import Any

import torch

from experiments.gpu.ceilings import copy_bandwidth, matmul_rate
from experiments.gpu.inputs import LLAMA_1B, LLAMA_8B, Heads, Inputs, make_inputs
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
DECODE_TARGET = 0.75
# (heads, page_size, sequences, new tokens, KV length)
PREFILLS = (
    (LLAMA_8B, 16, 1, 8192, 8192),
    (LLAMA_8B, 1, 1, 8192, 8192),
    (LLAMA_8B, 16, 16, 512, 512),
    (LLAMA_8B, 16, 16, 128, 4224),
    (LLAMA_8B, 16, 1, 16_384, 16_384),
    (LLAMA_1B, 16, 1, 8192, 8192),
)
PREFILL_TARGET = 0.50
WRITE_TOKENS = 65_536


def decode_seconds(
    inputs: Inputs, launch: Launch | None = None, splits: int | None = None
) -> float:
    """Of one call over all sequences."""
    return device_seconds(
        lambda: paged_decode(
            inputs.query, inputs.key_pages, inputs.value_pages, inputs.batch,
            scale=inputs.scale, launch=launch, splits=splits,
        )
    )  # fmt: skip


def prefill_seconds(inputs: Inputs, launch: Launch | None = None) -> float:
    """Of one call over all sequences."""
    return device_seconds(
        lambda: paged_prefill(
            inputs.query, inputs.key_pages, inputs.value_pages, inputs.batch,
            scale=inputs.scale, launch=launch,
        )
    )  # fmt: skip


def decode_row(heads: Heads, page_size: int, sequences: int, kv_len: int) -> dict[str, Any]:
    """Bytes of keys and values read per second."""
    inputs = make_inputs([(1, kv_len)] * sequences, heads, page_size=page_size)
    seconds = decode_seconds(inputs)
    rate = 2 * sequences * kv_len * heads.kv * heads.dim * inputs.query.element_size() / seconds
    share = rate / copy_bandwidth()
    print(
        f"decode  head_dim {heads.dim:3} page {page_size:2} {sequences:3} x {kv_len:6}: "
        f"{seconds * 1e6:8.1f} us {rate / 1e12:5.2f} TB/s {share:5.1%} of copy"
    )
    shape = {"head_dim": heads.dim, "page_size": page_size}
    size = {"sequences": sequences, "kv_len": kv_len}
    return {**shape, **size, "seconds": seconds, "bytes_per_s": rate, "share_of_copy": share}


def prefill_row(
    heads: Heads, page_size: int, sequences: int, new: int, kv_len: int
) -> dict[str, Any]:
    """FLOP/s of the pairs that the causal test lets through."""
    inputs = make_inputs([(new, kv_len)] * sequences, heads, page_size=page_size)
    seconds = prefill_seconds(inputs)
    pairs = sequences * (new * (kv_len - new) + new * (new + 1) // 2)
    rate = 4 * pairs * heads.query * heads.dim / seconds
    share = rate / matmul_rate()
    print(
        f"prefill head_dim {heads.dim:3} page {page_size:2} {sequences:3} x {new:5} of {kv_len:5}: "
        f"{seconds * 1e6:8.1f} us {rate / 1e12:4.0f} TFLOP/s {share:5.1%} of matmul"
    )
    shape = {"head_dim": heads.dim, "page_size": page_size, "sequences": sequences}
    size = {"new_tokens": new, "kv_len": kv_len}
    return {**shape, **size, "seconds": seconds, "flop_per_s": rate, "share_of_matmul": share}


def write_row() -> dict[str, Any]:
    """Bytes read and written per second by the KV write."""
    heads = LLAMA_8B
    inputs = make_inputs([(WRITE_TOKENS, WRITE_TOKENS)], heads)
    key = torch.randn(WRITE_TOKENS, heads.kv, heads.dim, device="cuda", dtype=torch.bfloat16)
    seconds = device_seconds(
        lambda: write_kv(key, key, inputs.key_pages, inputs.value_pages, inputs.batch)
    )
    rate = 4 * key.numel() * key.element_size() / seconds
    share = rate / copy_bandwidth()
    print(f"kv_write {WRITE_TOKENS} tokens: {rate / 1e12:.2f} TB/s {share:.1%} of copy")
    return {
        "tokens": WRITE_TOKENS, "seconds": seconds, "bytes_per_s": rate, "share_of_copy": share
    }  # fmt: skip


def run() -> dict[str, Any]:
    """All rates; the first decode and the first prefill are held to their targets in print."""
    decodes = [decode_row(*shape) for shape in DECODES]
    prefills = [prefill_row(*shape) for shape in PREFILLS]
    for name, share, target in (
        ("decode", decodes[0]["share_of_copy"], DECODE_TARGET),
        ("prefill", prefills[0]["share_of_matmul"], PREFILL_TARGET),
    ):
        verdict = "reached" if share >= target else "BELOW"
        print(f"{name}: {share:.1%} of the ceiling, target {target:.0%}: {verdict}")
    return {"decode": decodes, "prefill": prefills, "kv_write": write_row()}
