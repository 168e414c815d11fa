"""What does not fit is refused with its name; what is far away is still found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from testbed_kernels.batch import PagedBatch
from testbed_kernels.decode import paged_decode
from testbed_kernels.kv_write import write_kv
from testbed_kernels.launch import DECODE, PREFILL, SHARED, SHARED_MEMORY, launch_for
from testbed_kernels.prefill import paged_prefill
from testbed_kernels.shared_prefix import SharedPrefixes, cut_segments, shared_launch
from tests.kernels.paged import DEVICE, PagedCase, assert_close, make_case


def far_pages(file: Path) -> torch.Tensor:
    """float16[3, 4, 1, 16], its pages 2^30 elements apart; a sparse file where there is no GPU."""
    elements = 2 * 2**30 + 64
    if DEVICE == "cuda":
        flat = torch.empty(elements, dtype=torch.float16, device=DEVICE)
    else:
        flat = torch.from_file(str(file), shared=True, size=elements, dtype=torch.float16)
    return flat.as_strided((3, 4, 1, 16), (2**30, 16, 16, 1))


def test_offsets_past_two_to_the_31_are_found(tmp_path: Path) -> None:
    case = make_case([(1, 4)], heads=(1, 1), head_dim=16, page_size=4, dtype=torch.float16)
    case.batch.page_table.fill_(2)
    keys, values = far_pages(tmp_path / "keys"), far_pages(tmp_path / "values")
    all_new = PagedBatch(
        case.batch.kv_lens.new_tensor([0, 4]), case.batch.kv_lens, case.batch.page_table
    )
    write_kv(case.keys[0], case.values[0], keys, values, all_new)
    assert torch.equal(keys[2], case.keys[0])
    for attend in (paged_decode, paged_prefill):
        out = attend(case.query, keys, values, case.batch, scale=case.scale)
        assert_close(out, case.expected())


def test_shared_pages_past_two_to_the_31_are_found(tmp_path: Path) -> None:
    # Two sequences share the far page, and each has a token of its own on a near one.
    case = make_case([(1, 5), (1, 5)], heads=(1, 1), head_dim=16, page_size=4, dtype=torch.float16)
    keys, values = far_pages(tmp_path / "keys"), far_pages(tmp_path / "values")
    case.batch.page_table[:, 0] = 2
    for row in range(2):
        case.batch.page_table[row, 1] = row
        for pages, dense in ((keys, case.keys), (values, case.values)):
            dense[row][:4] = dense[0][:4]
            pages[2] = dense[0][:4]
            pages[row, 0] = dense[row][4]
    cut = cut_segments(
        [(0, 1, np.array([0, 1]))],
        2,
        page_size=4,
        group=1,
        block_m=shared_launch(case.query).block_m,
        programs=1,
    )
    shared = SharedPrefixes.on_device(cut, torch.device(DEVICE))
    out = paged_decode(case.query, keys, values, case.batch, scale=case.scale, shared=shared)
    assert_close(out, case.expected())


def to_double(case: PagedCase) -> None:
    case.query = case.query.double()
    case.key_pages, case.value_pages = case.key_pages.double(), case.value_pages.double()


def strided(case: PagedCase) -> None:
    case.query = case.query.transpose(1, 2).contiguous().transpose(1, 2)


def other_layout(case: PagedCase) -> None:
    case.value_pages = case.value_pages.transpose(1, 2).contiguous().transpose(1, 2)


def fewer_heads(case: PagedCase) -> None:
    case.query = case.query[:, :3]


def half_query(case: PagedCase) -> None:
    case.query = case.query.half()


def flat_pages(case: PagedCase) -> None:
    case.key_pages = case.key_pages.flatten(0, 1)


@pytest.mark.parametrize("attend", [paged_decode, paged_prefill])
@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (to_double, "dtype: torch.float64; bfloat16, float16 or float32 is needed"),
        (strided, "query: head_dim is strided"),
        (other_layout, "they must be equal, and 1 in the last dimension"),
        (fewer_heads, "a multiple of 2 heads, 64"),
        (half_query, "query is torch.float16 on .*, the pages are torch.float32"),
        (flat_pages, r"both must be \[pages, page_size, kv_heads, head_dim\]"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(
    attend: Callable[..., torch.Tensor], spoil: Callable[[PagedCase], None], message: str
) -> None:
    case = make_case([(1, 10)])
    spoil(case)
    with pytest.raises(ValueError, match=message):
        attend(case.query, case.key_pages, case.value_pages, case.batch, scale=case.scale)


def test_decode_takes_one_row_a_sequence() -> None:
    case = make_case([(2, 10)])
    with pytest.raises(ValueError, match="query: 2 rows for 1 sequences"):
        paged_decode(case.query, case.key_pages, case.value_pages, case.batch, scale=1.0)


def test_a_head_wider_than_256_is_refused() -> None:
    with pytest.raises(ValueError, match="head_dim: 320; at most 256 is supported"):
        launch_for(DECODE, torch.empty(1, 1, 320))


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        (
            "query_starts",
            torch.zeros(2, dtype=torch.int32),
            r"query_starts: .*int32\[3\] is needed",
        ),
        ("kv_lens", torch.zeros(2), r"kv_lens: torch.float32\[2\]; int32\[2\] is needed"),
        ("page_table", torch.zeros(3, 4, dtype=torch.int32), r"page_table: .*int32\[2, 4\]"),
        ("page_table", torch.zeros(4, 2, dtype=torch.int32).t(), "page_table: .* is strided"),
    ],
)
def test_a_batch_of_wrong_shape_is_refused(name: str, tensor: torch.Tensor, message: str) -> None:
    tensors = {
        "query_starts": torch.zeros(3, dtype=torch.int32),
        "kv_lens": torch.zeros(2, dtype=torch.int32),
        "page_table": torch.zeros(2, 4, dtype=torch.int32),
    }
    with pytest.raises(ValueError, match=message):
        PagedBatch(**{**tensors, name: tensor})


@pytest.mark.parametrize("table", [DECODE, PREFILL, SHARED])
def test_each_card_has_a_launch_for_every_width_and_element(table: dict[object, object]) -> None:
    assert set(table) == {(a, w, n) for a in SHARED_MEMORY for w in (64, 128, 256) for n in (2, 4)}
