"""paged_decode: one query token a sequence, split over the KV length."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

from math import log

import torch
import triton
import triton.language as tl

from testbed_kernels.batch import PagedBatch, check_pages
from testbed_kernels.launch import DECODE, Launch, cores_of, launch_for, padded_head_dim
from testbed_kernels.paging import VARYING, attend
from testbed_kernels.shared_prefix import SharedPrefixes, attend_shared

MAX_SPLITS = 64
LEAST_SPLIT = 256
"""Keys below which a part of its own costs more in the merge than it saves."""
PROGRAMS_PER_CORE = 8


@triton.jit
def first_key(kv_len, BLOCK_N: tl.constexpr, WINDOW: tl.constexpr):
    """The start of the first tile that the last token sees anything of."""
    if WINDOW > 0:
        return tl.maximum(kv_len - WINDOW, 0) // BLOCK_N * BLOCK_N
    return kv_len * 0


@triton.jit
def split_len(kv_len, first, splits, BLOCK_N: tl.constexpr):
    """Keys in a part: whole tiles, as even as they come. Both stages take it from here."""
    return tl.cdiv(tl.cdiv(kv_len - first, splits), BLOCK_N) * BLOCK_N


@triton.jit(do_not_specialize=VARYING)
def decode_kernel(
    part_ptr,
    lse_ptr,
    query_ptr,
    key_pages_ptr,
    value_pages_ptr,
    kv_lens_ptr,
    page_table_ptr,
    suffix_starts_ptr,
    shared_parts_ptr,
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
    WINDOW: tl.constexpr,
    SHARED: tl.constexpr,
    WHOLE: tl.constexpr,
):
    """One program attends up to BLOCK_M heads of a group to one part of their sequence's keys.

    It stores the part's own softmax-weighted mean, and the base-2 logarithm of its weights' sum
    unless the part is the WHOLE. With SHARED the keys before suffix_starts are others' work, and
    their parts come first.
    """
    sequence = tl.program_id(0)
    split = tl.program_id(2)
    GROUP_TILES: tl.constexpr = (GROUP + BLOCK_M - 1) // BLOCK_M
    kv_head = tl.program_id(1) // GROUP_TILES
    kv_len = tl.load(kv_lens_ptr + sequence)
    part_index = split
    if SHARED:
        first = tl.load(suffix_starts_ptr + sequence)
        part_index += tl.load(shared_parts_ptr + sequence)
    else:
        first = first_key(kv_len, BLOCK_N, WINDOW)
    length = split_len(kv_len, first, tl.num_programs(2), BLOCK_N)
    begin = first + split * length
    end = tl.minimum(begin + length, kv_len)
    # The merge counts the parts as split_len does, and never reads one that is empty.
    if not WHOLE:  # noqa: SIM102 (one is known to the compiler, the other to the device)
        if begin >= end:
            return

    rows = tl.program_id(1) % GROUP_TILES * BLOCK_M + tl.arange(0, BLOCK_M)
    dims = tl.arange(0, BLOCK_D)
    heads = kv_head * GROUP + rows
    in_group = rows < GROUP
    mask = in_group[:, None] & (dims < HEAD_DIM)[None, :]
    row = sequence.to(tl.int64)
    query_offsets = row * stride_query_sequence + heads * stride_query_head
    query = tl.load(query_ptr + query_offsets[:, None] + dims[None, :], mask=mask, other=0.0)

    row_positions = tl.zeros([BLOCK_M], tl.int32) + (kv_len - 1)
    whole_end = begin
    if WINDOW == 0:
        whole_end += tl.maximum(end - begin, 0) // BLOCK_N * BLOCK_N
    pages_ptr = page_table_ptr + row * stride_table
    key_ptr = key_pages_ptr + kv_head.to(tl.int64) * stride_head
    value_ptr = value_pages_ptr + kv_head.to(tl.int64) * stride_head
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    row_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    for start in range(begin, whole_end, BLOCK_N):
        acc, row_max, row_sum = attend(
            acc, row_max, row_sum, query, row_positions, start, end, pages_ptr, key_ptr, value_ptr,
            stride_page, stride_slot, scale_log2,
            PAGE_SIZE, HEAD_DIM, BLOCK_D, BLOCK_N, WINDOW, MASKED=False,
        )  # fmt: skip
    for start in range(whole_end, end, BLOCK_N):
        acc, row_max, row_sum = attend(
            acc, row_max, row_sum, query, row_positions, start, end, pages_ptr, key_ptr, value_ptr,
            stride_page, stride_slot, scale_log2,
            PAGE_SIZE, HEAD_DIM, BLOCK_D, BLOCK_N, WINDOW, MASKED=True,
        )  # fmt: skip

    part = acc / tl.where(row_sum == 0.0, 1.0, row_sum)[:, None]
    part_offsets = row * stride_part_sequence + heads * stride_part_head
    part_offsets += part_index.to(tl.int64) * stride_part_split
    part_pointers = part_ptr + part_offsets[:, None] + dims[None, :]
    tl.store(part_pointers, part.to(part_ptr.dtype.element_ty), mask=mask)
    if not WHOLE:
        lse_offsets = row * stride_lse_sequence + heads * stride_lse_head + part_index
        tl.store(lse_ptr + lse_offsets, row_max + tl.log2(row_sum), mask=in_group)


@triton.jit(do_not_specialize=VARYING)
def merge_kernel(
    out_ptr,
    part_ptr,
    lse_ptr,
    kv_lens_ptr,
    suffix_starts_ptr,
    shared_parts_ptr,
    splits,
    stride_out_sequence,
    stride_out_head,
    stride_part_sequence,
    stride_part_head,
    stride_part_split,
    stride_lse_sequence,
    stride_lse_head,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_N: tl.constexpr,
    WINDOW: tl.constexpr,
    SHARED: tl.constexpr,
):
    """One program merges the parts of one sequence and head, weighted by the sums of weights."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    kv_len = tl.load(kv_lens_ptr + row)
    first = tl.load(suffix_starts_ptr + row) if SHARED else first_key(kv_len, BLOCK_N, WINDOW)
    length = split_len(kv_len, first, splits, BLOCK_N)
    parts = tl.cdiv(kv_len - first, tl.maximum(length, 1))
    if SHARED:
        parts += tl.load(shared_parts_ptr + row)
    dims = tl.arange(0, BLOCK_D)
    in_head = dims < HEAD_DIM
    part_ptr += row * stride_part_sequence + head * stride_part_head
    lse_ptr += row * stride_lse_sequence + head * stride_lse_head
    acc = tl.zeros([BLOCK_D], tl.float32)
    largest = float("-inf")
    total = 0.0
    for split in range(0, parts):
        lse = tl.load(lse_ptr + split)
        part = tl.load(part_ptr + split * stride_part_split + dims, mask=in_head, other=0.0)
        new_largest = tl.maximum(largest, lse)
        decay = tl.exp2(largest - new_largest)
        weight = tl.exp2(lse - new_largest)
        acc = acc * decay + part * weight
        total = total * decay + weight
        largest = new_largest
    out = acc / tl.where(total == 0.0, 1.0, total)
    out_pointers = out_ptr + row * stride_out_sequence + head * stride_out_head + dims
    tl.store(out_pointers, out.to(out_ptr.dtype.element_ty), mask=in_head)


def choose_splits(programs: int, capacity: int, cores: int) -> int:
    """Parts to cut each sequence into, so that `programs` unsplit ones fill `cores` processors.

    capacity: tokens that a row of the page table can hold, which stands in for the lengths, since
    those are on the device. A power of two, at most MAX_SPLITS.
    """
    wanted = min(-(-PROGRAMS_PER_CORE * cores // programs), capacity // LEAST_SPLIT)
    return min(MAX_SPLITS, 1 << (max(1, wanted) - 1).bit_length())


def paged_decode(
    query: torch.Tensor,
    key_pages: torch.Tensor,
    value_pages: torch.Tensor,
    batch: PagedBatch,
    *,
    scale: float,
    sliding_window: int | None = None,
    splits: int | None = None,
    shared: SharedPrefixes | None = None,
    launch: Launch | None = None,
) -> torch.Tensor:
    """Attention of one new token a sequence over its pages; batch.query_starts is not read.

    query: [sequences, heads, head_dim]. key_pages, value_pages: [pages, page_size, kv_heads,
    head_dim]; the new tokens' own KV must be in them already. `splits` parts of each sequence are
    attended to apart and merged in float32: None takes what fills the device, which moves with the
    batch size; a number makes a row's result independent of its neighbours. With `shared`, pages
    that several sequences read are read once, and `splits` cuts what a sequence reads alone.
    `launch` stands in for the committed table. Returns [sequences, heads, head_dim] of the query's
    dtype, zero for padding rows. ValueError for shapes, dtypes or strides that do not fit.
    """
    check_pages(query, key_pages, value_pages, "query")
    _, page_size, kv_heads, head_dim = key_pages.shape
    sequences, heads, _ = query.shape
    if sequences != batch.num_sequences:
        raise ValueError(f"query: {sequences} rows for {batch.num_sequences} sequences")
    if shared is not None and sliding_window is not None:
        raise ValueError(f"sliding_window={sliding_window}: a shared prefix is not in its window")
    group = heads // kv_heads
    tile = launch or launch_for(DECODE, query)
    programs = sequences * kv_heads * triton.cdiv(group, tile.block_m)
    if splits is None:
        capacity = batch.page_table.shape[1] * page_size
        splits = choose_splits(programs, capacity, cores_of(query.device))
    window = sliding_window or 0
    out = torch.empty_like(query)
    parts = splits + (0 if shared is None else shared.max_parts)
    lse = torch.empty(sequences, heads, parts, dtype=torch.float32, device=query.device)
    whole = splits == 1 and shared is None
    if whole:
        part = out.unsqueeze(2)
    else:
        part = torch.empty(*lse.shape, head_dim, dtype=torch.float32, device=query.device)
    scale_log2 = scale / log(2)
    if shared is not None:
        attend_shared(
            part, lse, query, key_pages, value_pages, batch.page_table, shared, scale_log2
        )  # fmt: skip
    # Never read where nothing is shared.
    suffix_starts = batch.kv_lens if shared is None else shared.suffix_starts
    shared_parts = batch.kv_lens if shared is None else shared.shared_parts
    decode_kernel[(sequences, programs // sequences, splits)](
        part,
        lse,
        query,
        key_pages,
        value_pages,
        batch.kv_lens,
        batch.page_table,
        suffix_starts,
        shared_parts,
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
        batch.page_table.stride(0),
        GROUP=group,
        PAGE_SIZE=page_size,
        HEAD_DIM=head_dim,
        BLOCK_D=padded_head_dim(head_dim),
        BLOCK_M=tile.block_m,
        BLOCK_N=tile.block_n,
        WINDOW=window,
        SHARED=shared is not None,
        WHOLE=whole,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )
    if not whole:
        merge_kernel[(sequences, heads)](
            out,
            part,
            lse,
            batch.kv_lens,
            suffix_starts,
            shared_parts,
            splits,
            out.stride(0),
            out.stride(1),
            part.stride(0),
            part.stride(1),
            part.stride(2),
            lse.stride(0),
            lse.stride(1),
            HEAD_DIM=head_dim,
            BLOCK_D=padded_head_dim(head_dim),
            BLOCK_N=tile.block_n,
            WINDOW=window,
            SHARED=shared is not None,
        )
    return out
