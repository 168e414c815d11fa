"""Tile sizes by architecture, head_dim and dtype; committed, never tuned at run time."""

from __future__ import annotations

from typing import NamedTuple

import torch


class Launch(NamedTuple):
    """How a kernel is cut: rows and keys of a tile, warps of a program, stages of its pipeline."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int


SHARED_MEMORY = {"sm_80": 101_376, "sm_90": 232_448}
"""Bytes a program may take. sm_80 stands for Ampere and Ada: the least of their cards counts."""

# (architecture, head_dim up to, bytes of an element)
DECODE = {
    ("sm_80", 64, 2): Launch(16, 64, 4, 3),
    ("sm_80", 128, 2): Launch(16, 64, 4, 3),
    ("sm_80", 256, 2): Launch(16, 32, 4, 3),
    ("sm_80", 64, 4): Launch(16, 32, 4, 3),
    ("sm_80", 128, 4): Launch(16, 16, 4, 2),
    ("sm_80", 256, 4): Launch(16, 16, 4, 2),
    ("sm_90", 64, 2): Launch(16, 128, 4, 3),
    ("sm_90", 128, 2): Launch(16, 64, 4, 3),
    ("sm_90", 256, 2): Launch(16, 64, 4, 2),
    ("sm_90", 64, 4): Launch(16, 32, 4, 2),
    ("sm_90", 128, 4): Launch(16, 16, 8, 2),
    ("sm_90", 256, 4): Launch(16, 16, 4, 2),
}
"""A tile's rows are query heads of one group; a tensor core takes no fewer than 16."""

PREFILL = {
    ("sm_80", 64, 2): Launch(128, 64, 8, 3),
    ("sm_80", 128, 2): Launch(64, 64, 8, 2),
    ("sm_80", 256, 2): Launch(64, 32, 8, 2),
    ("sm_80", 64, 4): Launch(32, 32, 4, 2),
    ("sm_80", 128, 4): Launch(32, 16, 4, 2),
    ("sm_80", 256, 4): Launch(16, 16, 8, 2),
    ("sm_90", 64, 2): Launch(128, 64, 8, 3),
    ("sm_90", 128, 2): Launch(128, 64, 8, 3),
    ("sm_90", 256, 2): Launch(128, 32, 8, 2),
    ("sm_90", 64, 4): Launch(64, 32, 8, 2),
    ("sm_90", 128, 4): Launch(16, 16, 4, 2),
    ("sm_90", 256, 4): Launch(16, 16, 8, 2),
}
"""A tile's rows are pairs of a query token and a head of one group, heads fastest."""

SHARED = {**PREFILL, ("sm_90", 256, 2): Launch(64, 32, 8, 2)}
"""Of shared_prefix: prefill's, whose work is alike, but for one that would spill there."""


def padded_head_dim(head_dim: int) -> int:
    """The power of two that a tile is wide: 64, 128 or 256. ValueError above 256."""
    for width in (64, 128, 256):
        if head_dim <= width:
            return width
    raise ValueError(f"head_dim: {head_dim}; at most 256 is supported")


def launch_for(table: dict[tuple[str, int, int], Launch], tensor: torch.Tensor) -> Launch:
    """The table's row for a tensor of [..., head_dim]: its device, its head_dim and its dtype.

    Hopper and the data-centre Blackwells take the sm_90 rows; all other devices, the CPU under
    Triton's interpreter among them, the sm_80 rows.
    """
    if tensor.dtype not in (torch.bfloat16, torch.float16, torch.float32):
        raise ValueError(f"dtype: {tensor.dtype}; bfloat16, float16 or float32 is needed")
    arch = "sm_80"
    if tensor.is_cuda and torch.cuda.get_device_capability(tensor.device)[0] in (9, 10):
        arch = "sm_90"
    return table[arch, padded_head_dim(tensor.shape[-1]), tensor.element_size()]


def cores_of(device: torch.device) -> int:
    """Multiprocessors of a GPU; 1 for any other device."""
    if device.type != "cuda":
        return 1
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
