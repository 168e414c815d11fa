"""Linear layers whose weights are laid out once for oneDNN, torch's other matrix library on CPUs.

torch multiplies fp32 matrices with MKL and the weights as they lie. oneDNN is faster here, most of
all on the wide matrix of a vocabulary, but would rearrange the weights at every call.
"""

from __future__ import annotations

import torch
from torch import nn

MIN_WEIGHTS = 2**16
"""Below, a call of oneDNN costs more than it saves."""
ROWS_HINT = 64
"""Rows that the layout is chosen for; one chosen for a single row is slow for all others."""


class PackedLinear(nn.Module):
    """The same product as the linear layer it is made from, on weights of its own."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.bias = linear.bias
        self._packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), ROWS_HINT)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """[..., in_features] to [..., out_features]."""
        output: torch.Tensor = torch.ops.mkldnn._linear_pointwise(
            inputs, self._packed, self.bias, "none", [], ""
        )
        return output


def pack_linear_layers(module: nn.Module) -> None:
    """Replace all large linear layers of a model in evaluation mode, in place.

    Their plain weights are given up, except one that an embedding shares. Nothing is done unless
    the model is fp32, on a CPU, and torch was built with oneDNN.
    """
    weight = next(module.parameters())
    if weight.device.type != "cpu" or weight.dtype != torch.float32:
        return
    if not torch.backends.mkldnn.is_available():
        return
    for name, linear in list(module.named_modules()):
        if isinstance(linear, nn.Linear) and linear.weight.numel() >= MIN_WEIGHTS:
            module.set_submodule(name, PackedLinear(linear))
