"""RMSNorm on a CPU in one pass over memory."""

from __future__ import annotations

import torch

from testbed_kernels.cpu_library import library


def supported(inputs: torch.Tensor) -> bool:
    """Whether the kernel can normalise such a tensor on this machine."""
    return (
        inputs.device.type == "cpu"
        and inputs.dtype == torch.float32
        and inputs.is_contiguous()
        and library() is not None
    )


def cpu_rms_norm(inputs: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """x * weight / sqrt(mean(x^2) + epsilon) of each row, of the inputs' shape.

    inputs: [..., width], as supported() wants it. weight: float32[width], contiguous, else
    ValueError. A row's result depends on nothing but the row.
    """
    width = inputs.shape[-1]
    if weight.shape != (width,) or weight.dtype != torch.float32 or not weight.is_contiguous():
        raise ValueError(
            f"weight: {weight.dtype}{list(weight.shape)}; float32[{width}], contiguous, is needed"
        )
    kernels = library()
    assert kernels is not None, "supported() says whether there is one"
    out = torch.empty_like(inputs)
    kernels.testbed_cpu_rms_norm(
        inputs.data_ptr(),
        weight.data_ptr(),
        inputs.numel() // width,
        width,
        epsilon,
        out.data_ptr(),
    )
    return out
