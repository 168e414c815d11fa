"""What the card reaches at best: bytes copied, and products of large matrices."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from experiments.gpu.timing import device_seconds

COPY_BYTES = 2 * 2**30
MATMUL_SIDE = 8192


@cache
def copy_bandwidth() -> float:
    """Bytes read and written per second by a copy of 2 GiB."""
    source = torch.empty(COPY_BYTES, dtype=torch.int8, device="cuda").random_(0, 100)
    target = torch.empty_like(source)
    return 2 * COPY_BYTES / device_seconds(lambda: target.copy_(source))


@cache
def matmul_rate() -> float:
    """bf16 FLOP/s of a product of square matrices of random numbers (zeros would run faster)."""
    left, right = (
        torch.randn(MATMUL_SIDE, MATMUL_SIDE, device="cuda", dtype=torch.bfloat16) for _ in range(2)
    )
    out = torch.empty_like(left)
    return 2 * MATMUL_SIDE**3 / device_seconds(lambda: torch.mm(left, right, out=out))


def run() -> dict[str, Any]:
    """Both ceilings, in bytes/s and FLOP/s."""
    print(f"copy {copy_bandwidth() / 1e12:.2f} TB/s, matmul {matmul_rate() / 1e12:.0f} TFLOP/s")
    return {"copy_bytes_per_s": copy_bandwidth(), "matmul_flop_per_s": matmul_rate()}
