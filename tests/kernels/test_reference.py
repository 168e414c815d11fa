"""The plain-torch references against dense float64 attention."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from testbed_kernels import reference
from testbed_kernels.batch import PagedBatch
from tests.kernels.paged import DEVICE, assert_close, make_case, random_shape


@pytest.mark.parametrize("sliding_window", [None, 1, 20])
@pytest.mark.parametrize("seed", range(4))
def test_attention_equals_dense_attention(seed: int, sliding_window: int | None) -> None:
    rng = np.random.default_rng(seed)
    lengths = [(1, 1), (5, 5), (1, 33), (7, 40), (0, 9), (16, 48)]
    case = make_case(lengths, seed=seed, **random_shape(rng))
    out = reference.paged_attention(
        case.query, case.key_pages, case.value_pages, case.batch, scale=case.scale,
        sliding_window=sliding_window,
    )  # fmt: skip
    assert_close(out, case.expected(sliding_window))


def test_a_token_that_sees_two_keys_alike_gets_their_values_mean() -> None:
    pages = torch.zeros(1, 4, 1, 2, device=DEVICE)
    values = torch.tensor([[1.0, 2], [3, 6], [9, 9], [9, 9]], device=DEVICE).view(1, 4, 1, 2)
    batch = PagedBatch(
        torch.tensor([0, 1], dtype=torch.int32, device=DEVICE),
        torch.tensor([2], dtype=torch.int32, device=DEVICE),
        torch.tensor([[0]], dtype=torch.int32, device=DEVICE),
    )
    query = torch.ones(1, 1, 2, device=DEVICE)
    out = reference.paged_attention(query, pages, values, batch, scale=1.0)
    assert out.tolist() == [[[2.0, 4.0]]]


def test_write_puts_each_token_in_its_slot_and_nothing_elsewhere() -> None:
    key = torch.arange(1.0, 4, device=DEVICE).view(3, 1, 1)
    key_pages = torch.zeros(4, 2, 1, 1, device=DEVICE)
    value_pages = torch.zeros_like(key_pages)
    batch = PagedBatch(
        torch.tensor([0, 1, 1, 3], dtype=torch.int32, device=DEVICE),
        torch.tensor([3, 0, 2], dtype=torch.int32, device=DEVICE),
        torch.tensor([[3, 1], [0, 0], [2, 0]], dtype=torch.int32, device=DEVICE),
    )
    reference.write_kv(key, 10 * key, key_pages, value_pages, batch)
    assert key_pages.flatten().tolist() == [0, 0, 1, 0, 2, 3, 0, 0]
    assert value_pages.flatten().tolist() == [0, 0, 10, 0, 20, 30, 0, 0]
