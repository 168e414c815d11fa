"""Rotary position embedding on a CPU in one pass over memory."""

from __future__ import annotations

import torch

from testbed_kernels.cpu_library import library


def supported(states: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> bool:
    """Whether the kernel can rotate such a tensor on this machine."""
    whole = (1, states.shape[2], states.shape[3]) if states.dim() == 4 else None
    return (
        states.device.type == "cpu"
        and {states.dtype, cosines.dtype, sines.dtype} == {torch.float32}
        and states.shape[:1] == (1,)
        and states.stride(-1) == 1
        and cosines.shape == sines.shape == whole
        and cosines.is_contiguous()
        and sines.is_contiguous()
        and library() is not None
    )


def cpu_rotary(states: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
    """Queries or keys, rotated by their positions' angles; x * cos + rotate_half(x) * sin.

    states: [1, heads, tokens, head_dim], as supported() wants them. cosines, sines: [1, tokens,
    head_dim]. Returns the states' shape, laid out token by token. Su et al., RoFormer, 2021.
    """
    kernels = library()
    assert kernels is not None, "supported() says whether there is one"
    _, heads, tokens, head_dim = states.shape
    out = torch.empty(1, tokens, heads, head_dim)
    kernels.testbed_cpu_rotary(
        states.data_ptr(),
        cosines.data_ptr(),
        sines.data_ptr(),
        *(tokens, heads, head_dim, states.stride(2), states.stride(1)),
        out.data_ptr(),
    )
    return out.transpose(1, 2)
