"""cpu_prefill against dense float64 attention."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from testbed_kernels.cpu_attention import DecodeRows, QueryRuns, cpu_decode, cpu_prefill
from testbed_kernels.cpu_library import library
from tests.kernels.paged import PagedCase, make_case

pytestmark = pytest.mark.skipif(library() is None, reason="no C compiler (cc) is here")


def runs_of(case: PagedCase, window: int | None = None) -> QueryRuns:
    """Each sequence's query tokens, its last ones, see themselves and what lies before them."""
    table, bounds = case.batch.page_table, case.batch.query_starts.long()
    lasts = zip(bounds[:-1].tolist(), bounds[1:].tolist(), case.batch.kv_lens.tolist(), strict=True)
    ends = torch.cat([torch.arange(n - (last - first), n) + 1 for first, last, n in lasts])
    return QueryRuns(
        table.flatten(),
        torch.arange(len(table)) * table.shape[1],
        bounds,
        torch.arange(len(ends)),
        torch.zeros_like(ends) if window is None else (ends - window).clamp(min=0),
        ends,
    )


def prefill(case: PagedCase, runs: QueryRuns) -> tuple[torch.Tensor, torch.Tensor]:
    tokens, heads, head_dim = case.query.shape
    kv_heads = case.key_pages.shape[2]
    query = case.query.view(tokens, kv_heads, heads // kv_heads, head_dim)
    out, weight = torch.empty_like(query), torch.empty(query.shape[:3])
    cpu_prefill(
        query, case.key_pages, case.value_pages, runs,
        merge=False, scale=case.scale, out=out, weight=weight,
    )  # fmt: skip
    return out.view(case.query.shape), weight


@pytest.mark.parametrize("window", [None, 1, 30, 100])
@pytest.mark.parametrize("page_size", [1, 3, 16, 100])
@pytest.mark.parametrize(
    ("heads", "head_dim"), [((9, 3), 64), ((4, 4), 128), ((14, 2), 16), ((40, 1), 80)]
)
def test_every_token_sees_its_own_past(
    heads: tuple[int, int], head_dim: int, page_size: int, window: int | None
) -> None:
    lengths = [(1, 1), (7, 7), (1, 130), (70, 70), (33, 200), (64, 64), (20, 65)]
    case = make_case(lengths, heads=heads, head_dim=head_dim, page_size=page_size)
    out, _ = prefill(case, runs_of(case, window))
    np.testing.assert_allclose(out.double(), case.expected(window), rtol=0, atol=2e-6)


@pytest.mark.parametrize("shared", [1, 64, 90])
def test_what_several_rows_share_merges_with_what_each_reads_alone(shared: int) -> None:
    case = make_case(5 * [(1, 130)], heads=(6, 2), page_size=1)
    for row in range(5):
        case.batch.page_table[row, :shared] = case.batch.page_table[0, :shared]
        case.keys[row][:shared], case.values[row][:shared] = (
            tensors[0][:shared] for tensors in (case.keys, case.values)
        )
    table = case.batch.page_table
    out, weight = torch.empty(5, 2, 3, 64), torch.empty(5, 2, 3)
    starts, ends = torch.arange(5) * table.shape[1], torch.full((5,), 130)
    alone = DecodeRows(table.flatten(), starts, torch.full((5,), shared), ends)
    query = case.query.view(5, 2, 3, 64)
    pages = case.key_pages, case.value_pages
    cpu_decode(query, *pages, alone, scale=case.scale, out=out, weight=weight)
    before = out[3].clone()
    # Not all rows take part, nor in order.
    places = torch.tensor([4, 0, 2, 1])
    nothing, reach = torch.zeros(4, dtype=torch.int64), torch.full((4,), shared)
    bounds = torch.tensor([0, 4])
    common = QueryRuns(table[0, :shared].clone(), bounds[:1], bounds, places, nothing, reach)
    cpu_prefill(query, *pages, common, merge=True, scale=case.scale, out=out, weight=weight)
    expected = case.expected().reshape(5, 2, 3, 64)
    np.testing.assert_allclose(out[places].double(), expected[places], rtol=0, atol=2e-6)
    assert torch.equal(out[3], before)
    _, whole = prefill(case, runs_of(case))
    np.testing.assert_allclose(weight[places], whole[places], rtol=1e-6)


@pytest.mark.parametrize("window", [None, 30])
def test_a_token_does_not_depend_on_its_neighbours_or_on_how_prompts_are_cut(
    window: int | None,
) -> None:
    case = make_case([(5, 5), (150, 150), (9, 40)], heads=(9, 3))
    together, weight = prefill(case, runs_of(case, window))
    runs = runs_of(case, window)
    case.query = case.query[100:103]
    cut = QueryRuns(
        runs.pages, runs.tables[1:2], torch.tensor([0, 3]), torch.arange(3),
        runs.firsts[100:103], runs.ends[100:103],
    )  # fmt: skip
    out, weight_alone = prefill(case, cut)
    assert torch.equal(out, together[100:103])
    assert torch.equal(weight_alone, weight[100:103])


def test_extreme_scores_neither_overflow_nor_vanish() -> None:
    case = make_case([(40, 200)], heads=(2, 1))
    case.scale = 1000.0
    out, _ = prefill(case, runs_of(case))
    np.testing.assert_allclose(out.double(), case.expected(), rtol=0, atol=2e-6)


def test_an_unwritten_slot_that_is_read_shows() -> None:
    case = make_case([(1, 40)])
    case.key_pages[case.batch.page_table[0, 1].item(), 3] = torch.nan
    assert prefill(case, runs_of(case))[0].isnan().all()


def test_what_does_not_fit_is_named() -> None:
    case = make_case([(1, 40)], head_dim=12)
    with pytest.raises(ValueError, match="head_dim=12: a multiple of 8 is needed"):
        prefill(case, runs_of(case))
    case.value_pages = case.value_pages.half()
    with pytest.raises(ValueError, match=r"value_pages: torch.float16.*contiguous, is needed"):
        prefill(case, runs_of(case))
