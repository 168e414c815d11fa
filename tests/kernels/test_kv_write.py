"""write_kv: every new token in its slot, every other slot as it was."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from testbed_kernels.batch import PagedBatch
from testbed_kernels.kv_write import write_kv
from tests.kernels.paged import DEVICE, make_case, random_shape


@pytest.mark.parametrize("seed", range(6))
def test_new_tokens_replace_poison_and_nothing_else_changes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    lengths = [(1, 1), (0, 12), (3, 3), (1, 35), (9, 30)]
    case = make_case(lengths, seed=seed, **random_shape(rng))
    expected = [case.key_pages.clone(), case.value_pages.clone()]
    page_size = case.key_pages.shape[1]
    for index, (count, kv_len) in enumerate(lengths):
        for position in range(kv_len - count, kv_len):
            page = case.batch.page_table[index, position // page_size]
            case.key_pages[page, position % page_size] = torch.nan
            case.value_pages[page, position % page_size] = torch.nan
    new = [(dense[len(dense) - n :]) for dense, (n, _) in zip(case.keys, lengths, strict=True)]
    new_values = [v[len(v) - n :] for v, (n, _) in zip(case.values, lengths, strict=True)]
    # As a model hands them over: views of one fused projection, strided.
    fused = torch.stack([torch.cat(new), torch.cat(new_values)], dim=1)
    write_kv(fused[:, 0], fused[:, 1], case.key_pages, case.value_pages, case.batch)
    torch.testing.assert_close(case.key_pages, expected[0], rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(case.value_pages, expected[1], rtol=0, atol=0, equal_nan=True)


def test_padding_rows_write_nothing() -> None:
    pages = torch.zeros(2, 4, 1, 16, device=DEVICE)
    rows = torch.ones(5, 1, 16, device=DEVICE)  # two more than the batch has
    batch = PagedBatch(
        torch.tensor([0, 1, 2, 3], dtype=torch.int32, device=DEVICE),
        torch.tensor([0, 0, 2], dtype=torch.int32, device=DEVICE),
        torch.tensor([[0], [0], [1]], dtype=torch.int32, device=DEVICE),
    )
    write_kv(rows, rows, pages, pages.clone(), batch)
    assert pages.sum((1, 2, 3)).tolist() == [0, 16]
    assert pages[1, 1].sum() == 16


def test_key_and_value_must_have_the_pages_heads() -> None:
    case = make_case([(2, 2)], heads=(4, 2))
    with pytest.raises(ValueError, match="both must have the pages' 2 heads"):
        write_kv(case.query, case.query, case.key_pages, case.value_pages, case.batch)
