"""Device code that the kernels share: finding a sequence, and attending to one tile of keys."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, no-any-return"
# Triton's functions are compiled from their source; only their constexpr annotations mean anything.

from __future__ import annotations

import triton
import triton.language as tl

VARYING = (
    "query_starts_ptr",
    "kv_lens_ptr",
    "page_table_ptr",
    "suffix_starts_ptr",
    "shared_parts_ptr",
    "items_ptr",
    "members_ptr",
    "num_sequences",
    "splits",
    "stride_table",
    "stride_lse_sequence",
    "stride_lse_head",
)
"""Arguments that change from step to step: what do_not_specialize takes. Triton would compile a
kernel once more for each combination of those that are 1, that 16 divides, and others."""


@triton.jit
def find_sequence(
    index,
    query_starts_ptr,
    num_sequences,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    GAP: tl.constexpr,
):
    """The last sequence whose first tile is at most `index`, by bisection.

    A sequence's first tile is query_start * ROWS // TILE + GAP * sequence. With GAP 1 each sequence
    gets enough tiles of its own whatever the lengths, at most one of them too many, so that the
    grid is known without reading a length back from the device.
    """
    low = 0
    high = num_sequences
    while low < high:
        middle = (low + high) // 2
        start = tl.load(query_starts_ptr + middle) * ROWS // TILE + middle * GAP
        if start <= index:
            low = middle + 1
        else:
            high = middle
    return low - 1


@triton.jit
def load_tile(pointers, present, in_head, MASKED: tl.constexpr, PADDED: tl.constexpr):
    """Load a tile of keys or values; what is not `present`, or not `in_head`, reads as zero."""
    if MASKED and PADDED:
        tile = tl.load(pointers, mask=present & in_head, other=0.0)
    elif MASKED:
        tile = tl.load(pointers, mask=present, other=0.0)
    elif PADDED:
        tile = tl.load(pointers, mask=in_head, other=0.0)
    else:
        tile = tl.load(pointers)
    return tile


@triton.jit
def attend(
    acc,
    row_max,
    row_sum,
    query,
    row_positions,
    tile_start,
    kv_end,
    pages_ptr,
    key_ptr,
    value_ptr,
    stride_page,
    stride_slot,
    scale_log2,
    PAGE_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_N: tl.constexpr,
    WINDOW: tl.constexpr,
    MASKED: tl.constexpr,
):
    """One step of the online softmax: fold keys tile_start to tile_start + BLOCK_N in.

    acc: float32[rows, BLOCK_D], not yet divided by row_sum; row_max in base-2 logarithms. Without
    MASKED every row must see every key of the tile. pages_ptr: the sequence's row of the page
    table; key_ptr, value_ptr: at the KV head. Source: Milakov and Gimelshein, arXiv 1805.02867.
    """
    positions = tile_start + tl.arange(0, BLOCK_N)
    dims = tl.arange(0, BLOCK_D)
    present = positions < kv_end
    in_head = dims < HEAD_DIM
    if MASKED:
        pages = tl.load(pages_ptr + positions // PAGE_SIZE, mask=present, other=0)
    else:
        pages = tl.load(pages_ptr + positions // PAGE_SIZE)
    # int64 before the product: page times stride passes 2^31 on a large card.
    slots_in_page = (positions % PAGE_SIZE).to(tl.int64)
    slots = pages.to(tl.int64) * stride_page + slots_in_page * stride_slot
    PADDED: tl.constexpr = HEAD_DIM != BLOCK_D

    key = load_tile(
        key_ptr + slots[None, :] + dims[:, None], present[None, :], in_head[:, None], MASKED, PADDED
    )
    # The scale goes onto the scores: a query scaled in half precision would lose bits.
    scores = tl.dot(query, key, input_precision="ieee") * scale_log2
    if MASKED:
        visible = present[None, :] & (positions[None, :] <= row_positions[:, None])
        if WINDOW > 0:
            visible = visible & (positions[None, :] > row_positions[:, None] - WINDOW)
        scores = tl.where(visible, scores, float("-inf"))
    new_max = tl.maximum(row_max, tl.max(scores, 1))
    # A row that has seen no key yet has maximum -inf, and -inf - -inf is not a number.
    shift = tl.where(new_max == float("-inf"), 0.0, new_max)
    weights = tl.exp2(scores - shift[:, None])
    decay = tl.exp2(row_max - shift)
    value = load_tile(
        value_ptr + slots[:, None] + dims[None, :],
        present[:, None],
        in_head[None, :],
        MASKED,
        PADDED,
    )
    acc = acc * decay[:, None]
    acc = tl.dot(weights.to(value.dtype), value, acc, input_precision="ieee")
    return acc, new_max, row_sum * decay + tl.sum(weights, 1)
