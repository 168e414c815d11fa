"""What the card reaches at best: bytes copied, and products of large matrices."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import torch

from experiments.gpu.setting import Setting
from experiments.gpu.timing import device_seconds

COPY_BYTES = 2 * 2**30
MATMUL_SIDE = 8192


@cache
def copy_bandwidth(setting: Setting) -> float:
    """Bytes read and written per second by a copy of 2 GiB."""
    size = setting.size(COPY_BYTES, 2**20)
    source = torch.empty(size, dtype=torch.int8, device=setting.device).random_(0, 100)
    target = torch.empty_like(source)
    return 2 * size / device_seconds(lambda: target.copy_(source), setting)


@cache
def matmul_rate(setting: Setting) -> float:
    """FLOP/s of a product of square matrices of random numbers (zeros would run faster)."""
    side = setting.size(MATMUL_SIDE, 64)
    left, right = (
        torch.randn(side, side, device=setting.device, dtype=setting.dtype) for _ in range(2)
    )
    out = torch.empty_like(left)
    return 2 * side**3 / device_seconds(lambda: torch.mm(left, right, out=out), setting)


def run(setting: Setting) -> Iterator[dict[str, Any]]:
    """Both ceilings, in bytes/s and FLOP/s."""
    copied, multiplied = copy_bandwidth(setting), matmul_rate(setting)
    print(f"copy {copied / 1e12:.2f} TB/s, matmul {multiplied / 1e12:.0f} TFLOP/s")
    yield {"copy_bytes_per_s": copied, "matmul_flop_per_s": multiplied}
