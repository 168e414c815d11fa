"""write_kv: new keys and values into their pages."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from testbed_kernels.batch import PagedBatch, check_pages
from testbed_kernels.paging import VARYING, find_sequence


@triton.jit(do_not_specialize=VARYING)
def kv_write_kernel(
    key_ptr,
    value_ptr,
    key_pages_ptr,
    value_pages_ptr,
    query_starts_ptr,
    kv_lens_ptr,
    page_table_ptr,
    num_sequences,
    stride_key_token,
    stride_key_head,
    stride_value_token,
    stride_value_head,
    stride_page,
    stride_slot,
    stride_head,
    stride_table,
    PAGE_SIZE: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """One program copies one token: all its KV heads, key and value."""
    token = tl.program_id(0)
    sequence = find_sequence(token, query_starts_ptr, num_sequences, 1, 1, 0)
    query_end = tl.load(query_starts_ptr + sequence + 1)
    kv_len = tl.load(kv_lens_ptr + sequence)
    # Rows past the last sequence's end are padding, as are those of sequences of length 0.
    if (kv_len == 0) | (token >= query_end):
        return
    position = kv_len - query_end + token
    page = tl.load(page_table_ptr + sequence.to(tl.int64) * stride_table + position // PAGE_SIZE)
    heads = tl.arange(0, BLOCK_H)[:, None].to(tl.int64)
    dims = tl.arange(0, BLOCK_D)[None, :]
    mask = (heads < KV_HEADS) & (dims < HEAD_DIM)
    row = token.to(tl.int64)
    slot = page.to(tl.int64) * stride_page + (position % PAGE_SIZE).to(tl.int64) * stride_slot
    target = slot + heads * stride_head + dims
    key = tl.load(key_ptr + row * stride_key_token + heads * stride_key_head + dims, mask=mask)
    value = tl.load(
        value_ptr + row * stride_value_token + heads * stride_value_head + dims, mask=mask
    )
    tl.store(key_pages_ptr + target, key, mask=mask)
    tl.store(value_pages_ptr + target, value, mask=mask)


def write_kv(
    key: torch.Tensor,
    value: torch.Tensor,
    key_pages: torch.Tensor,
    value_pages: torch.Tensor,
    batch: PagedBatch,
) -> None:
    """Write each new token's key and value into its slot, in place.

    key, value: [tokens, kv_heads, head_dim]. key_pages, value_pages: [pages, page_size, kv_heads,
    head_dim]. Padding rows (kv_len 0, or tokens past the last sequence) are left out.
    """
    check_pages(key, key_pages, value_pages, "key")
    check_pages(value, key_pages, value_pages, "value")
    _, page_size, kv_heads, head_dim = key_pages.shape
    if key.shape != value.shape or key.shape[1] != kv_heads:
        raise ValueError(
            f"key {list(key.shape)}, value {list(value.shape)}: both must have the pages' "
            f"{kv_heads} heads"
        )
    kv_write_kernel[(key.shape[0],)](
        key,
        value,
        key_pages,
        value_pages,
        batch.query_starts,
        batch.kv_lens,
        batch.page_table,
        batch.num_sequences,
        key.stride(0),
        key.stride(1),
        value.stride(0),
        value.stride(1),
        key_pages.stride(0),
        key_pages.stride(1),
        key_pages.stride(2),
        batch.page_table.stride(0),
        PAGE_SIZE=page_size,
        KV_HEADS=kv_heads,
        HEAD_DIM=head_dim,
        BLOCK_H=triton.next_power_of_2(kv_heads),
        BLOCK_D=triton.next_power_of_2(head_dim),
    )
