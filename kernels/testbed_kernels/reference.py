"""The kernels' meaning in plain torch: slow, for any device and dtype."""

from __future__ import annotations

import torch

from testbed_kernels.batch import PagedBatch, check_pages


def write_kv(
    key: torch.Tensor,
    value: torch.Tensor,
    key_pages: torch.Tensor,
    value_pages: torch.Tensor,
    batch: PagedBatch,
) -> None:
    """Write each new token's key and value into its slot, in place.

    key, value: [tokens, kv_heads, head_dim]. key_pages, value_pages: [pages, page_size, kv_heads,
    head_dim]. Padding rows (kv_len 0) are left out.
    """
    check_pages(key, key_pages, value_pages, "key")
    page_size = key_pages.shape[1]
    starts = batch.query_starts.tolist()
    for index, kv_len in enumerate(batch.kv_lens.tolist()):
        rows = slice(starts[index], starts[index + 1])
        positions = torch.arange(kv_len - rows.stop + rows.start, kv_len, device=key.device)
        if kv_len:
            pages = batch.page_table[index, positions // page_size].long()
            key_pages[pages, positions % page_size] = key[rows]
            value_pages[pages, positions % page_size] = value[rows]


def paged_attention(
    query: torch.Tensor,
    key_pages: torch.Tensor,
    value_pages: torch.Tensor,
    batch: PagedBatch,
    *,
    scale: float,
    sliding_window: int | None = None,
) -> torch.Tensor:
    """Causal attention of the new tokens over their sequences' pages.

    query: [tokens, heads, head_dim]; heads in groups of heads // kv_heads that share a KV head.
    The new tokens' own KV must be in the pages already. A token sees the keys at its own position
    and before; with a sliding window, the last `sliding_window` of them. Computed in float32, or
    float64 where the query is. Returns [tokens, heads, head_dim] of the query's dtype.
    """
    check_pages(query, key_pages, value_pages, "query")
    _, page_size, kv_heads, head_dim = key_pages.shape
    group = query.shape[1] // kv_heads
    precision = torch.promote_types(query.dtype, torch.float32)
    out = torch.zeros_like(query)
    starts = batch.query_starts.tolist()
    for index, kv_len in enumerate(batch.kv_lens.tolist()):
        rows = slice(starts[index], starts[index + 1])
        if kv_len == 0 or rows.start == rows.stop:
            continue
        positions = torch.arange(kv_len, device=query.device)
        pages = batch.page_table[index, positions // page_size].long()
        keys = key_pages[pages, positions % page_size].to(precision)
        values = value_pages[pages, positions % page_size].to(precision)
        grouped = query[rows].to(precision).view(-1, kv_heads, group, head_dim)
        scores = torch.einsum("qhgd,khd->hgqk", grouped, keys) * scale
        behind = positions[kv_len - grouped.shape[0] :, None] - positions[None, :]
        hidden = behind < 0
        if sliding_window is not None:
            hidden |= behind >= sliding_window
        weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        out[rows] = torch.einsum("hgqk,khd->qhgd", weights, values).reshape(out[rows].shape).to(out)
    return out
