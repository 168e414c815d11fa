"""The last layer's MLP computes what is wanted, and only within a forward of the engine."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from testbed.engine.last_mlp import LastMlp
from tests.engine.building import Models


class CountingMlp(nn.Module):
    """Doubles; counts the tokens it is given."""

    tokens = 0

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        self.tokens += hidden.shape[1]
        return 2 * hidden


@pytest.mark.parametrize(("wanted", "computed"), [([1, 3], 2), ([], 0), ([0, 1, 2, 3], 4)])
def test_only_the_wanted_tokens_are_computed(wanted: list[int], computed: int) -> None:
    mlp = CountingMlp()
    last = LastMlp(mlp)
    hidden = torch.arange(1.0, 9).view(1, 4, 2)
    with last.only(torch.tensor(wanted, dtype=torch.int64)):
        output = mlp(hidden)
    assert mlp.tokens == computed
    assert torch.equal(output[:, wanted], 2 * hidden[:, wanted])
    others = [place for place in range(4) if place not in wanted]
    assert output[:, others].abs().sum() == 0


def test_elsewhere_and_after_an_error_all_are() -> None:
    mlp = CountingMlp()
    last = LastMlp(mlp)
    hidden = torch.ones(1, 4, 2)
    with pytest.raises(KeyError), last.only(torch.tensor([2])):
        raise KeyError
    assert torch.equal(mlp(hidden), 2 * hidden)


@pytest.mark.parametrize("family", ["tiny-llama", "tiny-qwen2", "tiny-qwen3", "tiny-mistral"])
def test_every_family_has_one(models: Models, family: str) -> None:
    assert models[family].last_mlp is not None
