"""Linear layers whose weights are laid out once for oneDNN, torch's other matrix library on CPUs.

torch multiplies fp32 matrices with MKL and the weights as they lie. oneDNN is faster here, most of
all on the wide matrix of a vocabulary, but would rearrange the weights at every call.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

MIN_WEIGHTS = 2**16
"""Below, a call of oneDNN costs more than it saves."""
ROWS_HINT = 64
"""Rows that the layout is chosen for; one chosen for a single row is slow for all others."""
MERGED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Layers of one attention, or of one MLP, that are called in this order with the same tensor."""


class PackedLinear(nn.Module):
    """The product of one linear layer, or of several side by side, on weights of its own."""

    def __init__(self, *linears: nn.Linear) -> None:
        super().__init__()
        self.in_features = linears[0].in_features
        self.out_features = sum(linear.out_features for linear in linears)
        weight = torch.cat([linear.weight.detach() for linear in linears])
        biases = [linear.bias.detach() for linear in linears if linear.bias is not None]
        self.bias = torch.cat(biases) if biases else None
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight, ROWS_HINT)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """[..., in_features] to [..., out_features]."""
        output: torch.Tensor = torch.ops.mkldnn._linear_pointwise(
            inputs, self._packed, self.bias, "none", [], ""
        )
        return output


class MergedLinears:
    """Layers that read the same tensor, computed at once when the first of them is called."""

    def __init__(self, linears: Sequence[nn.Linear]) -> None:
        self.product = PackedLinear(*linears)
        self._widths = [linear.out_features for linear in linears]
        self._inputs: torch.Tensor | None = None
        self._outputs: list[torch.Tensor] = []

    def output(self, place: int, inputs: torch.Tensor) -> torch.Tensor:
        """What the layer at this place makes of the inputs."""
        if inputs is not self._inputs:
            self._outputs = list(self.product(inputs).split(self._widths, dim=-1))
            self._inputs = inputs
        output = self._outputs[place]
        if place == len(self._widths) - 1:
            # Nothing is kept alive, and no other tensor can be mistaken for this one.
            self._inputs, self._outputs = None, []
        return output


class MergedPart(nn.Module):
    """One of the layers of MergedLinears."""

    def __init__(self, merged: MergedLinears, place: int) -> None:
        super().__init__()
        self._merged, self._place = merged, place

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """[..., in_features] to [..., out_features]."""
        return self._merged.output(self._place, inputs)


def pack_linear_layers(module: nn.Module) -> None:
    """Replace all large linear layers of a model in evaluation mode, in place.

    Their plain weights are given up, except one that an embedding shares. Layers that are MERGED
    become one product. Nothing is done unless the model is fp32, on a CPU, and torch was built with
    oneDNN.
    """
    weight = next(module.parameters())
    if weight.device.type != "cpu" or weight.dtype != torch.float32:
        return
    if not torch.backends.mkldnn.is_available():
        return
    for block in list(module.modules()):
        for names in MERGED:
            _merge(block, names)
    for name, linear in list(module.named_modules()):
        if _is_large(linear):
            module.set_submodule(name, PackedLinear(linear))


def _merge(block: nn.Module, names: Sequence[str]) -> None:
    named = [getattr(block, name, None) for name in names]
    linears = [layer for layer in named if isinstance(layer, nn.Linear)]
    if len(linears) < len(names) or not _is_large(linears[0]):
        return
    if len({linear.bias is None for linear in linears}) == 1:
        merged = MergedLinears(linears)
        for place, name in enumerate(names):
            block.set_submodule(name, MergedPart(merged, place))


def _is_large(layer: nn.Module) -> bool:
    return isinstance(layer, nn.Linear) and layer.weight.numel() >= MIN_WEIGHTS
