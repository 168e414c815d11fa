"""The compiled RMSNorm against the formula in float64, and what it refuses."""

from __future__ import annotations

import pytest
import torch

from testbed_kernels.cpu_library import library
from testbed_kernels.cpu_rms_norm import cpu_rms_norm, supported

pytestmark = pytest.mark.skipif(library() is None, reason="no C compiler (cc) is here")


@pytest.mark.parametrize("rows", [0, 1, 7, 300])
@pytest.mark.parametrize("width", [1, 17, 576])
def test_every_row_is_normalised_by_itself(rows: int, width: int) -> None:
    generator = torch.Generator().manual_seed(rows + width)
    inputs = torch.randn(rows, width, generator=generator)
    weight = torch.randn(width, generator=generator)
    wide = inputs.double()
    expected = wide * weight / (wide.pow(2).mean(-1, keepdim=True) + 0.5).sqrt()
    ours = cpu_rms_norm(inputs, weight, 0.5)
    assert torch.allclose(ours.double(), expected, rtol=1e-5, atol=1e-6)
    for row in range(0, rows, 50):
        assert torch.equal(cpu_rms_norm(inputs[row : row + 1], weight, 0.5)[0], ours[row])


def test_what_is_not_float32_or_lies_apart_is_not_supported() -> None:
    inputs = torch.randn(4, 8)
    assert supported(inputs)
    assert not supported(inputs.bfloat16())
    assert not supported(inputs[:, :4])


@pytest.mark.parametrize("weight", [torch.ones(4), torch.ones(8).double(), torch.ones(16)[::2]])
def test_a_weight_that_does_not_fit_is_refused(weight: torch.Tensor) -> None:
    with pytest.raises(ValueError, match=r"weight: .* float32\[8\], contiguous, is needed"):
        cpu_rms_norm(torch.randn(2, 8), weight, 1e-5)
