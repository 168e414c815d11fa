"""Decoding over pages that sequences share, against dense float64 attention."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from testbed_kernels.decode import paged_decode
from testbed_kernels.shared_prefix import SharedCut, SharedPrefixes, cut_segments, shared_launch
from tests.kernels.paged import DEVICE, PagedCase, assert_close, make_case, random_shape

Segments = list[tuple[int, int, list[int]]]
"""First page, last page + 1, sequences."""


def share(case: PagedCase, segments: Segments) -> PagedCase:
    """Let the sequences of each segment read the pages of its first one."""
    size = case.key_pages.shape[1]
    for first, last, rows in segments:
        tokens = slice(first * size, last * size)
        for row in rows[1:]:
            case.batch.page_table[row, first:last] = case.batch.page_table[rows[0], first:last]
            case.keys[row][tokens] = case.keys[rows[0]][tokens]
            case.values[row][tokens] = case.values[rows[0]][tokens]
    return case


def cut(case: PagedCase, segments: Segments, programs: int = 1) -> SharedCut:
    return cut_segments(
        [(first, last, np.array(rows)) for first, last, rows in segments],
        case.batch.num_sequences,
        page_size=case.key_pages.shape[1],
        group=case.query.shape[1] // case.key_pages.shape[2],
        block_m=shared_launch(case.query).block_m,
        programs=programs,
    )


def on_device(made: SharedCut, unused_items: int = 0) -> SharedPrefixes:
    """With some items that nobody is a member of, as a captured graph has them."""
    items = np.concatenate((made.items, np.zeros((unused_items, 7), dtype=np.int32)))
    return SharedPrefixes.on_device(made._replace(items=items), torch.device(DEVICE))


def decode(case: PagedCase, shared: SharedPrefixes, splits: int | None = None) -> torch.Tensor:
    return paged_decode(
        case.query, case.key_pages, case.value_pages, case.batch, scale=case.scale,
        shared=shared, splits=splits,
    )  # fmt: skip


@pytest.mark.parametrize("splits", [1, 2])
def test_a_tree_of_prefixes(splits: int) -> None:
    # 0 to 3 share three pages; 0 and 1 two more, 2 and 3 one more. 4 shares nothing.
    segments: Segments = [(0, 3, [0, 1, 2, 3]), (3, 5, [0, 1]), (3, 4, [2, 3])]
    case = make_case([(1, 100), (1, 81), (1, 65), (1, 300), (1, 70)], heads=(6, 2))
    share(case, segments)
    shared = on_device(cut(case, segments))
    assert_close(decode(case, shared, splits), case.expected())


@pytest.mark.parametrize("seed", range(8))
def test_random_shapes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = random_shape(rng)
    size = shape["page_size"]
    assert isinstance(size, int)
    pages = int(rng.integers(1, 1 + 200 // size + 1))
    rows = sorted(rng.choice(4, size=int(rng.integers(2, 5)), replace=False).tolist())
    segments: Segments = [(0, pages, rows)]
    lengths = [(1, int(pages * size + rng.integers(1, 80))) for _ in range(4)]
    case = share(make_case(lengths, seed=seed, **shape), segments)  # type: ignore[arg-type]
    made = cut(case, segments, programs=int(rng.integers(1, 9)))
    assert_close(decode(case, on_device(made)), case.expected())


def test_long_segments_are_cut_and_wide_ones_tiled() -> None:
    # 40 sequences of 3 heads are 120 rows: two tiles of 64. 600 keys are two parts of 300.
    segments: Segments = [(0, 6, list(range(40)))]
    case = make_case([(1, 600 + row % 3 + 1) for row in range(40)], heads=(3, 1), page_size=100)
    share(case, segments)
    rows = np.arange(40)
    made = cut_segments([(0, 6, rows)], 40, page_size=100, group=3, block_m=64, programs=4)
    assert made.items.tolist() == [
        [0, 0, 300, 0, 40, 0, 0],
        [0, 0, 300, 0, 40, 64, 0],
        [0, 300, 600, 0, 40, 0, 1],
        [0, 300, 600, 0, 40, 64, 1],
    ]
    assert made.max_parts == 2
    assert_close(decode(case, on_device(cut(case, segments, programs=4))), case.expected())


def test_parts_follow_the_path_down_the_tree() -> None:
    segments = [
        (0, 64, np.array([0, 1, 2])),
        (64, 96, np.array([0, 2])),
    ]
    made = cut_segments(
        segments, 4, page_size=16, group=4, block_m=64, programs=1_000_000
    )  # parts of 256 keys
    assert made.items[:, 1:3].tolist() == [
        [0, 256], [256, 512], [512, 768], [768, 1024], [1024, 1280], [1280, 1536]
    ]  # fmt: skip
    assert made.items[:, 6].tolist() == [0, 1, 2, 3, 4, 5]
    assert made.members.tolist() == [0, 1, 2, 0, 2]
    assert made.items[:, 3].tolist() == [0, 0, 0, 0, 3, 3]
    assert made.suffix_starts.tolist() == [1536, 1024, 1536, 0]
    assert made.shared_parts.tolist() == [6, 4, 6, 0]


def test_a_part_is_never_shorter_than_a_page() -> None:
    made = cut_segments(
        [(0, 1, np.array([0, 1]))], 2, page_size=1024, group=1, block_m=64, programs=100
    )
    assert made.items[:, 1:3].tolist() == [[0, 1024]]


def test_unused_items_and_padding_rows_change_nothing() -> None:
    segments: Segments = [(0, 2, [0, 2])]
    case = share(make_case([(1, 40), (1, 0), (1, 33), (1, 20)]), segments)
    made = cut(case, segments)
    out = decode(case, on_device(made, unused_items=3), splits=1)
    assert_close(out, case.expected())
    assert out[1].abs().sum() == 0
    assert torch.equal(out, decode(case, on_device(made), splits=1))


def test_nothing_shared_is_plain_decoding() -> None:
    case = make_case([(1, 40), (1, 7)])
    shared = on_device(cut(case, []), unused_items=2)
    assert_close(decode(case, shared), case.expected())


def test_a_sequence_of_shared_pages_alone() -> None:
    segments: Segments = [(0, 3, [0, 1])]
    case = share(make_case([(1, 48), (1, 50)]), segments)
    assert_close(decode(case, on_device(cut(case, segments))), case.expected())


def test_a_sliding_window_is_refused() -> None:
    case = make_case([(1, 40)])
    shared = on_device(cut(case, []), unused_items=1)
    with pytest.raises(ValueError, match="sliding_window=5: a shared prefix"):
        paged_decode(
            case.query, case.key_pages, case.value_pages, case.batch, scale=1.0,
            sliding_window=5, shared=shared,
        )  # fmt: skip


def test_arrays_that_do_not_fit_are_refused() -> None:
    whole = torch.zeros(2, dtype=torch.int32)
    with pytest.raises(ValueError, match=r"items: \[2, 6\]; \[items, 7\] is needed"):
        SharedPrefixes(torch.zeros(2, 6, dtype=torch.int32), whole, whole, whole, 1, 64)
    with pytest.raises(ValueError, match=r"members: torch.int64; contiguous int32 is needed"):
        SharedPrefixes(torch.zeros(2, 7, dtype=torch.int32), whole.long(), whole, whole, 1, 64)


def test_items_of_another_tile_are_refused() -> None:
    case = share(make_case([(1, 40), (1, 40)]), [(0, 1, [0, 1])])
    made = cut(case, [(0, 1, [0, 1])])._replace(block_m=8)
    with pytest.raises(ValueError, match="block_m=8: the tile has"):
        decode(case, on_device(made))
