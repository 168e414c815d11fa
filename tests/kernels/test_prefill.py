"""paged_prefill against dense float64 attention."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from testbed_kernels.launch import Launch
from testbed_kernels.prefill import paged_prefill
from tests.kernels.paged import PagedCase, assert_close, make_case, random_shape


def prefill(
    case: PagedCase, sliding_window: int | None = None, launch: Launch | None = None
) -> torch.Tensor:
    return paged_prefill(
        case.query, case.key_pages, case.value_pages, case.batch, scale=case.scale,
        sliding_window=sliding_window, launch=launch,
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(10))
def test_random_shapes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    counts = rng.integers(1, 40, size=3)
    lengths = [(int(n), int(n + rng.integers(0, 100))) for n in counts]
    case = make_case(lengths, seed=seed, **random_shape(rng))
    assert_close(prefill(case), case.expected())


@pytest.mark.parametrize(
    "lengths",
    [
        [(1, 1)],
        [(64, 64)],
        [(65, 65)],
        [(1, 129)],
        [(1, 17), (0, 5), (1, 64), (30, 30), (1, 1), (3, 70)],
        [(2, 300), (1, 1), (1, 2), (1, 3)],
    ],
    ids=["one token", "a tile", "a tile and one", "one row", "decodes among prefills", "ragged"],
)
def test_ragged_batches(lengths: list[tuple[int, int]]) -> None:
    case = make_case(lengths, heads=(6, 2), page_size=5)
    assert_close(prefill(case), case.expected())


@pytest.mark.parametrize("sliding_window", [1, 15, 64, 1000])
def test_sliding_window(sliding_window: int) -> None:
    case = make_case([(1, 1), (40, 90), (1, 200)], heads=(3, 1))
    assert_close(prefill(case, sliding_window), case.expected(sliding_window))


@pytest.mark.parametrize("launch", [Launch(16, 16, 4, 1), Launch(16, 64, 4, 1)])
def test_the_tile_changes_no_result(launch: Launch) -> None:
    case = make_case([(20, 75), (3, 3)], heads=(3, 1))
    assert_close(prefill(case, launch=launch), case.expected())


def test_a_chunked_prompt_equals_a_whole_one() -> None:
    whole = make_case([(50, 50)])
    chunk = make_case([(50, 50)])
    chunk.batch.query_starts[1] = 20
    chunk.query = chunk.query[30:]
    torch.testing.assert_close(prefill(chunk), prefill(whole)[30:], rtol=0, atol=1e-6)


def test_padding_rows_are_zero_whatever_their_pages_hold() -> None:
    case = make_case([(1, 20), (1, 0), (4, 30), (1, 0)])
    out = prefill(case)
    assert_close(out, case.expected())
    assert out[1].abs().sum() == 0
    assert out[6].abs().sum() == 0
