"""paged_decode against dense float64 attention, and how it splits."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from testbed_kernels.batch import PagedBatch
from testbed_kernels.decode import choose_splits, paged_decode
from tests.kernels.paged import PagedCase, assert_close, make_case, random_shape


def decode(
    case: PagedCase, splits: int | None = None, sliding_window: int | None = None
) -> torch.Tensor:
    return paged_decode(
        case.query, case.key_pages, case.value_pages, case.batch, scale=case.scale,
        sliding_window=sliding_window, splits=splits,
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(10))
def test_random_shapes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    lengths = [(1, int(kv_len)) for kv_len in rng.integers(1, 160, size=3)]
    case = make_case(lengths, seed=seed, **random_shape(rng))
    assert_close(decode(case, splits=int(rng.choice([1, 2, 3]))), case.expected())


@pytest.mark.parametrize("splits", [1, 2, 5, 64])
def test_any_number_of_parts_gives_the_same_answer(splits: int) -> None:
    lengths = [(1, 1), (1, 64), (1, 65), (1, 300), (1, 7)]
    case = make_case(lengths, heads=(3, 1), page_size=7)
    assert_close(decode(case, splits), case.expected())


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("sliding_window", [1, 30, 64, 1000])
def test_sliding_window(splits: int, sliding_window: int) -> None:
    case = make_case([(1, 1), (1, 90), (1, 200)], heads=(2, 1))
    assert_close(decode(case, splits, sliding_window), case.expected(sliding_window))


@pytest.mark.parametrize("splits", [1, 4])
def test_padding_rows_are_zero_whatever_their_pages_hold(splits: int) -> None:
    case = make_case([(1, 20), (1, 0), (1, 150)])
    out = decode(case, splits)
    assert_close(out, case.expected())
    assert out[1].abs().sum() == 0


def test_with_a_number_of_parts_a_row_does_not_depend_on_its_neighbours() -> None:
    case = make_case([(1, 90), (1, 130), (1, 40)])
    together = decode(case, splits=2)
    starts = case.batch.query_starts[:2]
    kv_lens, page_table = case.batch.kv_lens[1:2], case.batch.page_table[1:2]
    case.batch = PagedBatch(starts, kv_lens, page_table)
    case.query = case.query[1:2]
    assert torch.equal(decode(case, splits=2)[0], together[1])


def test_extreme_scores_neither_overflow_nor_vanish() -> None:
    case = make_case([(1, 200)], heads=(2, 1))
    case.scale = 1000.0
    assert_close(decode(case, splits=3), case.expected())


@pytest.mark.parametrize(
    ("programs", "capacity", "cores", "splits"),
    [
        (1, 100_000, 1, 8),  # 8 programs a core
        (512, 4096, 132, 4),  # 1056 / 512 is 2.06: 3, and the next power of two
        (8, 131_072, 132, 64),  # 132, but never more than 64
        (8, 1000, 132, 4),  # 1000 tokens hold three parts of 256
        (8, 100, 132, 1),
        (4096, 100_000, 132, 1),
    ],
)
def test_parts_fill_the_device(programs: int, capacity: int, cores: int, splits: int) -> None:
    assert choose_splits(programs, capacity, cores) == splits
