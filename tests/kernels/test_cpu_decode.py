"""cpu_decode against dense float64 attention."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from testbed_kernels.cpu_attention import DecodeRows, cpu_decode, supported
from testbed_kernels.cpu_library import library
from tests.kernels.paged import PagedCase, make_case

needs_compiler = pytest.mark.skipif(library() is None, reason="no C compiler (cc) is here")


def rows_of(case: PagedCase, window: int | None = None) -> DecodeRows:
    ends = case.batch.kv_lens.long()
    firsts = torch.zeros_like(ends) if window is None else (ends - window).clamp(min=0)
    table = case.batch.page_table
    return DecodeRows(table.flatten(), torch.arange(len(table)) * table.shape[1], firsts, ends)


def decode(case: PagedCase, window: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    rows, heads, head_dim = case.query.shape
    kv_heads = case.key_pages.shape[2]
    query = case.query.view(rows, kv_heads, heads // kv_heads, head_dim)
    out, weight = torch.empty_like(query), torch.empty(query.shape[:3])
    cpu_decode(
        query, case.key_pages, case.value_pages, rows_of(case, window), scale=case.scale,
        out=out, weight=weight,
    )  # fmt: skip
    return out.view(case.query.shape), weight.view(rows, heads)


def score_sums(case: PagedCase) -> np.ndarray:
    """log(sum(exp(score))) of each row and head."""
    sums = np.empty(case.query.shape[:2])
    group = case.query.shape[1] // case.key_pages.shape[2]
    for row, head in np.ndindex(*sums.shape):
        keys = case.keys[row][:, head // group].double().numpy()
        scores = keys @ case.query[row, head].double().numpy() * case.scale
        sums[row, head] = scores.max() + np.log(np.exp(scores - scores.max()).sum())
    return sums


@needs_compiler
@pytest.mark.parametrize("window", [None, 1, 30])
@pytest.mark.parametrize("page_size", [1, 3, 16, 100])
@pytest.mark.parametrize(
    ("heads", "head_dim"),
    [((9, 3), 64), ((4, 4), 64), ((14, 2), 128), ((70, 1), 16), ((140, 2), 80), ((6, 2), 5)],
)
@pytest.mark.parametrize("repeats", [1, 8])
def test_every_row_reads_its_own_pages(
    heads: tuple[int, int], head_dim: int, page_size: int, window: int | None, repeats: int
) -> None:
    # Few rows are shared out by key heads, many are not.
    lengths = repeats * [(1, n) for n in (1, 16, 17, 90)]
    case = make_case(lengths, heads=heads, head_dim=head_dim, page_size=page_size)
    out, weight = decode(case, window)
    np.testing.assert_allclose(out.double(), case.expected(window), rtol=0, atol=2e-6)
    if window is None:
        np.testing.assert_allclose(weight.double(), score_sums(case), rtol=1e-6, atol=1e-6)


@needs_compiler
def test_a_row_does_not_depend_on_its_neighbours_or_the_threads() -> None:
    case = make_case(12 * [(1, 70)], heads=(9, 3))
    together, _ = decode(case)
    case.query, alone = case.query[5:6], case.batch.page_table[5:6].flatten()
    query = case.query.view(1, 3, 3, 64)
    out, weight = torch.empty_like(query), torch.empty(1, 3, 3)
    rows = DecodeRows(alone, *(torch.tensor([n]) for n in (0, 0, 70)))
    torch.set_num_threads(2)
    cpu_decode(
        query, case.key_pages, case.value_pages, rows, scale=case.scale, out=out, weight=weight
    )
    assert torch.equal(out.view(9, 64), together[5])


@needs_compiler
def test_extreme_scores_neither_overflow_nor_vanish() -> None:
    case = make_case([(1, 200)], heads=(2, 1))
    case.scale = 1000.0
    np.testing.assert_allclose(decode(case)[0].double(), case.expected(), rtol=0, atol=2e-6)


@needs_compiler
def test_an_unwritten_slot_that_is_read_shows() -> None:
    case = make_case([(1, 40)])
    case.key_pages[case.batch.page_table[0, 1].item(), 3] = torch.nan
    assert decode(case)[0].isnan().all()


@needs_compiler
def test_a_tensor_that_does_not_fit_is_named() -> None:
    case = make_case([(1, 40)])
    case.key_pages = case.key_pages.repeat_interleave(2, dim=1)[:, ::2]
    with pytest.raises(ValueError, match=r"key_pages: torch.float32.*contiguous, is needed"):
        decode(case)


@needs_compiler
def test_other_dtypes_and_odd_head_dims_are_not_supported() -> None:
    assert supported(torch.zeros(1, 1, 1, 8))
    assert not supported(torch.zeros(1, 1, 1, 8, dtype=torch.bfloat16))
    assert not supported(torch.zeros(1, 1, 1, 5))


def test_without_a_compiler_there_is_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    assert library.__wrapped__() is None
