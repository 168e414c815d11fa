"""RMSNorm against its formula, and which layers it takes the place of."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from testbed.engine.rms_norm import RMSNorm, replace_norms
from tests.engine.building import Models


@pytest.mark.parametrize("shape", [(1, 1, 96), (1, 65, 96), (1, 9, 3, 96)])
@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_it_is_the_formula(shape: tuple[int, ...], scale: float) -> None:
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(96, generator=generator)
    inputs = scale * torch.randn(shape, generator=generator)
    wide = inputs.double()
    expected = wide * weight / (wide.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt()
    before = inputs.clone()
    # What lies apart in memory goes through torch.
    apart = torch.cat([inputs, inputs], dim=-1)[..., :96]
    for given in (inputs, apart):
        ours = RMSNorm(weight, 1e-5)(given)
        assert torch.allclose(ours.double(), expected, rtol=1e-5, atol=1e-6)
    assert torch.equal(inputs, before)


class ShiftedNorm(nn.Module):
    """Gemma's: the weight is stored less 1."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((32,), 0.5))
        self.variance_epsilon = 1e-6

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        scale = torch.rsqrt(inputs.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return inputs * scale * (1 + self.weight)


def test_layers_that_are_another_norm_stay() -> None:
    module = nn.Sequential(ShiftedNorm(), nn.LayerNorm(32), nn.Linear(32, 32))
    replace_norms(module)
    assert [type(layer).__name__ for layer in module] == ["ShiftedNorm", "LayerNorm", "Linear"]


@pytest.mark.parametrize("family", ["tiny-llama", "tiny-qwen2", "tiny-qwen3", "tiny-mistral"])
def test_the_norms_of_every_family_are_replaced(models: Models, family: str) -> None:
    kinds = {type(layer) for layer in models[family].module.modules() if "Norm" in str(type(layer))}
    assert kinds == {RMSNorm}
