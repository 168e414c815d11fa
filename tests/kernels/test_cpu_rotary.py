"""The compiled rotary embedding against complex multiplication in float64, and what it takes."""

from __future__ import annotations

import pytest
import torch

from testbed_kernels.cpu_library import library
from testbed_kernels.cpu_rotary import cpu_rotary, supported

pytestmark = pytest.mark.skipif(library() is None, reason="no C compiler (cc) is here")


def angles(tokens: int, head_dim: int) -> torch.Tensor:
    return 6 * torch.rand(tokens, head_dim // 2, dtype=torch.float64)


@pytest.mark.parametrize("tokens", [0, 1, 5, 130])
@pytest.mark.parametrize(("heads", "head_dim"), [(1, 2), (3, 64), (9, 80)])
def test_pairs_turn_by_their_angles(tokens: int, heads: int, head_dim: int) -> None:
    torch.manual_seed(tokens + head_dim)
    # As queries lie in the product of several projections.
    wide = torch.randn(1, tokens, heads * head_dim + 16)
    states = wide[..., : heads * head_dim].view(1, tokens, heads, head_dim).transpose(1, 2)
    turns = angles(tokens, head_dim)
    both = torch.cat([turns, turns], dim=-1)[None]
    first, second = states.double().chunk(2, dim=-1)
    turned = torch.complex(first, second) * torch.polar(torch.ones_like(turns), turns)
    before = wide.clone()
    ours = cpu_rotary(states, both.cos().float(), both.sin().float())
    assert ours.shape == states.shape
    assert ours.transpose(1, 2).is_contiguous()
    expected = torch.cat([turned.real, turned.imag], dim=-1)
    assert torch.allclose(ours.double(), expected, atol=1e-5)
    assert torch.equal(wide, before)


def test_what_it_cannot_turn_is_not_supported() -> None:
    states, cos = torch.randn(1, 3, 5, 8), torch.randn(1, 5, 8)
    assert supported(states, cos, cos)
    assert not supported(states.bfloat16(), cos, cos)
    assert not supported(torch.randn(2, 3, 5, 8), cos, cos)
    # Part of a head only, other tokens, and heads that lie apart.
    assert not supported(states, cos[..., :4], cos[..., :4])
    assert not supported(states, cos[:, :1], cos[:, :1])
    assert not supported(torch.randn(1, 3, 5, 16)[..., ::2], cos, cos)
