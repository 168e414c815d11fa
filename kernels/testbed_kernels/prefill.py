"""paged_prefill: any number of query tokens a sequence, causal on absolute positions."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

from math import log

import torch
import triton
import triton.language as tl

from testbed_kernels.batch import PagedBatch, check_pages
from testbed_kernels.launch import PREFILL, Launch, launch_for, padded_head_dim
from testbed_kernels.paging import VARYING, attend, find_sequence


@triton.jit(do_not_specialize=VARYING)
def prefill_kernel(
    out_ptr,
    query_ptr,
    key_pages_ptr,
    value_pages_ptr,
    query_starts_ptr,
    kv_lens_ptr,
    page_table_ptr,
    num_sequences,
    scale_log2,
    stride_out_token,
    stride_out_head,
    stride_query_token,
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
):
    """One program attends BLOCK_M rows of one sequence and KV head to all that they see.

    Row r of a sequence is head r % GROUP of its query token r // GROUP: the group's heads lie in
    one tile, and each key is read once for all of them.
    """
    # The last tiles of a long prompt have the most keys; they start first.
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    kv_head = tl.program_id(1)
    sequence = find_sequence(tile, query_starts_ptr, num_sequences, GROUP, BLOCK_M, 1)
    query_start = tl.load(query_starts_ptr + sequence)
    query_len = tl.load(query_starts_ptr + sequence + 1) - query_start
    kv_len = tl.load(kv_lens_ptr + sequence)
    first_row = (tile - query_start * GROUP // BLOCK_M - sequence) * BLOCK_M
    if first_row >= query_len * GROUP:
        return

    rows = first_row + tl.arange(0, BLOCK_M)
    dims = tl.arange(0, BLOCK_D)
    tokens = rows // GROUP
    heads = kv_head * GROUP + rows % GROUP
    mask = (tokens < query_len)[:, None] & (dims < HEAD_DIM)[None, :]
    token_rows = (query_start + tokens).to(tl.int64)
    query_offsets = token_rows * stride_query_token + heads * stride_query_head
    query = tl.load(query_ptr + query_offsets[:, None] + dims[None, :], mask=mask, other=0.0)

    computed = kv_len - query_len
    row_positions = computed + tokens
    first_position = computed + first_row // GROUP
    last_token = tl.minimum((first_row + BLOCK_M - 1) // GROUP, query_len - 1)
    # A padding row has no position at all: its computed is negative, its kv_len 0.
    end = tl.minimum(kv_len, computed + last_token + 1)
    if WINDOW > 0:
        begin = tl.maximum(first_position - WINDOW + 1, 0) // BLOCK_N * BLOCK_N
        whole_end = begin
    else:
        begin = 0
        whole_end = tl.maximum(first_position + 1, 0) // BLOCK_N * BLOCK_N

    pages_ptr = page_table_ptr + sequence.to(tl.int64) * stride_table
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

    out = acc / tl.where(row_sum == 0.0, 1.0, row_sum)[:, None]
    out_offsets = token_rows * stride_out_token + heads * stride_out_head
    out_pointers = out_ptr + out_offsets[:, None] + dims[None, :]
    tl.store(out_pointers, out.to(out_ptr.dtype.element_ty), mask=mask)


def paged_prefill(
    query: torch.Tensor,
    key_pages: torch.Tensor,
    value_pages: torch.Tensor,
    batch: PagedBatch,
    *,
    scale: float,
    sliding_window: int | None = None,
    launch: Launch | None = None,
) -> torch.Tensor:
    """Causal attention of the new tokens over their sequences' pages, decode rows among them.

    query: [tokens, heads, head_dim]. key_pages, value_pages: [pages, page_size, kv_heads,
    head_dim]; the new tokens' own KV must be in them already. A token sees the keys at its own
    position and before; with a sliding window, the last `sliding_window` of them. `launch` stands
    in for the committed table. Returns [tokens, heads, head_dim] of the query's dtype; rows past
    the last sequence are not written. ValueError for shapes, dtypes or strides that do not fit.
    """
    check_pages(query, key_pages, value_pages, "query")
    _, page_size, kv_heads, head_dim = key_pages.shape
    num_tokens, heads, _ = query.shape
    group = heads // kv_heads
    tile = launch or launch_for(PREFILL, query)
    out = torch.empty_like(query)
    tiles = num_tokens * group // tile.block_m + batch.num_sequences
    prefill_kernel[(tiles, kv_heads)](
        out,
        query,
        key_pages,
        value_pages,
        batch.query_starts,
        batch.kv_lens,
        batch.page_table,
        batch.num_sequences,
        scale / log(2),
        out.stride(0),
        out.stride(1),
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
        WINDOW=sliding_window or 0,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )
    return out
