"""Decode attention over pages that several sequences share: each is read once for all of them.

The queries of all sequences of a segment become rows of one matrix product with its keys. What a
sequence has to itself is attended to by the decode kernel, which merges everything by the
log-sum-exp of the parts. Sources: Hydragen (arXiv 2402.05099), FastTree (MLSys 2025).
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
import triton
import triton.language as tl

from testbed_kernels.launch import SHARED, Launch, launch_for, padded_head_dim
from testbed_kernels.paging import VARYING, attend

Rows: TypeAlias = npt.NDArray[np.int64]
Ints: TypeAlias = npt.NDArray[np.int32]

ITEM_FIELDS = 7
LEAST_PART = 256
"""Keys below which a part of its own costs more in the merge than it saves."""
PROGRAMS_PER_CORE = 2
"""Programs of all KV heads that keep a device busy: a tile takes much of a core's memory."""


class SharedCut(NamedTuple):
    """Segments cut into work, on the host; see SharedPrefixes for the arrays.

    max_parts: the most parts that any sequence's shared pages were cut into. block_m: rows of an
    item.
    """

    items: Ints
    members: Ints
    suffix_starts: Ints
    shared_parts: Ints
    max_parts: int
    block_m: int


@dataclass(frozen=True)
class SharedPrefixes:
    """What paged_decode must know of the pages that sequences share; all tensors on one device.

    items: int32[items, 7], a program of each KV head each: the sequence whose page table is read,
        first key, last key + 1, start and number of its sequences in `members`, first of its rows
        (pairs of a member and a head of the group, heads fastest), and the part that it writes. An
        item of no members is skipped.
    members: int32; the sequences of each segment, back to back.
    suffix_starts: int32[sequences]; the first key that a sequence reads alone.
    shared_parts: int32[sequences]; parts that its keys before that were cut into.
    max_parts: no less than the largest of shared_parts. block_m: rows of an item, as many as the
        tile of shared_launch has.
    """

    items: torch.Tensor
    members: torch.Tensor
    suffix_starts: torch.Tensor
    shared_parts: torch.Tensor
    max_parts: int
    block_m: int

    def __post_init__(self) -> None:
        if self.items.ndim != 2 or self.items.shape[1] != ITEM_FIELDS:
            raise ValueError(f"items: {list(self.items.shape)}; [items, {ITEM_FIELDS}] is needed")
        for name in ("items", "members", "suffix_starts", "shared_parts"):
            tensor: torch.Tensor = getattr(self, name)
            if tensor.dtype != torch.int32 or not tensor.is_contiguous():
                raise ValueError(f"{name}: {tensor.dtype}; contiguous int32 is needed")
            if tensor.device != self.items.device:
                raise ValueError(f"{name}: on {tensor.device}, items on {self.items.device}")

    @classmethod
    def on_device(cls, cut: SharedCut, device: torch.device) -> SharedPrefixes:
        """The cut's arrays, moved."""
        return cls(
            torch.from_numpy(cut.items).to(device),
            torch.from_numpy(cut.members).to(device),
            torch.from_numpy(cut.suffix_starts).to(device),
            torch.from_numpy(cut.shared_parts).to(device),
            cut.max_parts,
            cut.block_m,
        )


def cut_segments(
    segments: Sequence[tuple[int, int, Rows]],
    num_sequences: int,
    *,
    page_size: int,
    group: int,
    block_m: int,
    programs: int,
) -> SharedCut:
    """Cut segments into items of at most block_m rows and of keys so many that `programs` come out.

    segments: (first page, last page + 1, sequences) of runs of full pages that are the same in the
    page tables of the sequences; those of one sequence adjacent, from page 0 on, outer ones first.
    group: query heads of a KV head.
    """
    # A tile reads its segment's keys whatever it has of rows.
    tiles = [-(-len(rows) * group // block_m) for _, _, rows in segments]
    tokens = [(last - first) * page_size for first, last, _ in segments]
    work = sum(t * n for t, n in zip(tiles, tokens, strict=True))
    part_len = max(LEAST_PART, -(-work // max(1, programs)))
    items: list[tuple[int, ...]] = []
    members: list[Rows] = []
    suffix_starts = np.zeros(num_sequences, dtype=np.int32)
    shared_parts = np.zeros(num_sequences, dtype=np.int32)
    member = 0
    for (first, last, rows), num_tiles in zip(segments, tiles, strict=True):
        begin, end = first * page_size, last * page_size
        parts = min(last - first, -(-(end - begin) // part_len))
        part = int(shared_parts[rows[0]])
        # Whole pages, as even as they come.
        bounds = first + np.arange(parts + 1) * (last - first) // parts
        for index, (low, high) in enumerate(pairwise(bounds.tolist())):
            keys = low * page_size, high * page_size
            for tile in range(num_tiles):
                item = (int(rows[0]), *keys, member, len(rows), tile * block_m, part + index)
                items.append(item)
        members.append(rows)
        member += len(rows)
        suffix_starts[rows] = end
        shared_parts[rows] = part + parts
    return SharedCut(
        np.array(items, dtype=np.int32).reshape(-1, ITEM_FIELDS),
        np.concatenate(members).astype(np.int32) if members else np.zeros(0, dtype=np.int32),
        suffix_starts,
        shared_parts,
        int(shared_parts.max(initial=0)),
        block_m,
    )


@triton.jit(do_not_specialize=VARYING)
def shared_kernel(
    part_ptr,
    lse_ptr,
    query_ptr,
    key_pages_ptr,
    value_pages_ptr,
    items_ptr,
    members_ptr,
    page_table_ptr,
    scale_log2,
    stride_part_sequence,
    stride_part_head,
    stride_part_split,
    stride_lse_sequence,
    stride_lse_head,
    stride_query_sequence,
    stride_query_head,
    stride_page,
    stride_slot,
    stride_head,
    stride_table,
    GROUP: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """One program attends BLOCK_M rows of one segment and KV head to one part of its keys.

    It stores what the decode kernel stores of a part, which every row of the segment sees whole.
    """
    item_ptr = items_ptr + tl.program_id(0) * 7
    kv_head = tl.program_id(1)
    num_members = tl.load(item_ptr + 4)
    if num_members == 0:
        return
    source = tl.load(item_ptr).to(tl.int64)
    begin = tl.load(item_ptr + 1)
    end = tl.load(item_ptr + 2)
    first_member = tl.load(item_ptr + 3)
    first_row = tl.load(item_ptr + 5)
    part_index = tl.load(item_ptr + 6)

    rows = first_row + tl.arange(0, BLOCK_M)
    dims = tl.arange(0, BLOCK_D)
    in_segment = rows // GROUP < num_members
    sequences = tl.load(members_ptr + first_member + rows // GROUP, mask=in_segment, other=0)
    sequences = sequences.to(tl.int64)
    heads = kv_head * GROUP + rows % GROUP
    mask = in_segment[:, None] & (dims < HEAD_DIM)[None, :]
    query_offsets = sequences * stride_query_sequence + heads * stride_query_head
    query = tl.load(query_ptr + query_offsets[:, None] + dims[None, :], mask=mask, other=0.0)

    row_positions = tl.zeros([BLOCK_M], tl.int32) + (end - 1)
    whole_end = begin + (end - begin) // BLOCK_N * BLOCK_N
    pages_ptr = page_table_ptr + source * stride_table
    key_ptr = key_pages_ptr + kv_head.to(tl.int64) * stride_head
    value_ptr = value_pages_ptr + kv_head.to(tl.int64) * stride_head
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    row_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    for start in range(begin, whole_end, BLOCK_N):
        acc, row_max, row_sum = attend(
            acc, row_max, row_sum, query, row_positions, start, end, pages_ptr, key_ptr, value_ptr,
            stride_page, stride_slot, scale_log2,
            PAGE_SIZE, HEAD_DIM, BLOCK_D, BLOCK_N, 0, MASKED=False,
        )  # fmt: skip
    for start in range(whole_end, end, BLOCK_N):
        acc, row_max, row_sum = attend(
            acc, row_max, row_sum, query, row_positions, start, end, pages_ptr, key_ptr, value_ptr,
            stride_page, stride_slot, scale_log2,
            PAGE_SIZE, HEAD_DIM, BLOCK_D, BLOCK_N, 0, MASKED=True,
        )  # fmt: skip

    part = acc / row_sum[:, None]
    part_offsets = sequences * stride_part_sequence + heads * stride_part_head
    part_offsets += part_index.to(tl.int64) * stride_part_split
    tl.store(part_ptr + part_offsets[:, None] + dims[None, :], part, mask=mask)
    lse_offsets = sequences * stride_lse_sequence + heads * stride_lse_head + part_index
    tl.store(lse_ptr + lse_offsets, row_max + tl.log2(row_sum), mask=in_segment)


def shared_launch(query: torch.Tensor) -> Launch:
    """The tile for a tensor of [..., head_dim]."""
    return launch_for(SHARED, query)


def attend_shared(
    part: torch.Tensor,
    lse: torch.Tensor,
    query: torch.Tensor,
    key_pages: torch.Tensor,
    value_pages: torch.Tensor,
    page_table: torch.Tensor,
    shared: SharedPrefixes,
    scale_log2: float,
) -> None:
    """Fill in the parts of the shared pages; paged_decode checks the shapes and merges.

    part: float32[sequences, heads, parts, head_dim]. lse: float32[sequences, heads, parts], base 2.
    ValueError if the items were cut for another tile.
    """
    launch = shared_launch(query)
    if shared.block_m != launch.block_m:
        raise ValueError(f"block_m={shared.block_m}: the tile has {launch.block_m} rows")
    _, page_size, kv_heads, head_dim = key_pages.shape
    shared_kernel[(shared.items.shape[0], kv_heads)](
        part,
        lse,
        query,
        key_pages,
        value_pages,
        shared.items,
        shared.members,
        page_table,
        scale_log2,
        part.stride(0),
        part.stride(1),
        part.stride(2),
        lse.stride(0),
        lse.stride(1),
        query.stride(0),
        query.stride(1),
        key_pages.stride(0),
        key_pages.stride(1),
        key_pages.stride(2),
        page_table.stride(0),
        GROUP=query.shape[1] // kv_heads,
        PAGE_SIZE=page_size,
        HEAD_DIM=head_dim,
        BLOCK_D=padded_head_dim(head_dim),
        BLOCK_M=launch.block_m,
        BLOCK_N=launch.block_n,
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
    )
