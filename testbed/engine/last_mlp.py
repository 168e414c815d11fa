"""The MLP of a model's last layer, for the tokens whose logits are wanted and no others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


class LastMlp:
    """Takes the place of an MLP's forward. It computes all tokens but within only(); there the
    others' output is zero, as no layer comes that would read it."""

    def __init__(self, mlp: nn.Module) -> None:
        self._forward = mlp.forward
        self._wanted: torch.Tensor | None = None
        mlp.forward = self.forward

    @contextmanager
    def only(self, wanted: torch.Tensor) -> Iterator[None]:
        """wanted: int64, places among the tokens."""
        self._wanted = wanted
        try:
            yield
        finally:
            self._wanted = None

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """[1, tokens, hidden_size], as the MLP's own."""
        wanted = self._wanted
        if wanted is None or len(wanted) == hidden.shape[1]:
            output: torch.Tensor = self._forward(hidden)
            return output
        output = torch.zeros_like(hidden)
        if len(wanted):
            output[:, wanted] = self._forward(hidden[:, wanted])
        return output
