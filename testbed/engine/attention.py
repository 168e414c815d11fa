"""Paged attention in plain torch, on any device.

The step's keys and values are written to the pool first; then every row reads all it may see
through its page table. Decode rows are attended in parts, each a run of pages: one that several
sequences share is read once for all of them, the rest in groups of similar length. Parts of one row
merge by their log-sum-exp.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import scaled_dot_product_attention

from testbed.core.page_pool import Pages
from testbed.engine.kv_pool import KVPool
from testbed.engine.model import AttentionStep
from testbed.engine.shared_prefix import Indices, shared_segments

MIN_SAVED_TOKENS = 512
"""Tokens that sharing must spare a step from reading before a part of its own pays."""
MAX_PART_TOKENS = 65_536
"""Tokens gathered at once, padding included; bounds the kept buffers."""


class StepRows(NamedTuple):
    """The rows of one step: `num_decodes` with one new token each, then prefill chunks.

    starts: int64, position of each row's first new token. counts: int64, its new tokens. tables:
    its page ids, which cover start + count tokens.
    """

    num_decodes: int
    starts: Indices
    counts: Indices
    tables: list[Pages]


class AttentionBackend(Protocol):
    """Makes the object that attends to one step's rows in every layer."""

    def plan(self, rows: StepRows) -> AttentionStep:
        """Prepare whatever all layers share."""
        ...


class TorchAttention:
    """Paged attention with torch operations over the pool.

    share_prefixes: let decode rows read shared pages once. min_saved_tokens: from how many spared
    tokens on.
    """

    def __init__(
        self, pool: KVPool, *, share_prefixes: bool = True, min_saved_tokens: int = MIN_SAVED_TOKENS
    ) -> None:
        self.pool = pool
        self.share_prefixes = share_prefixes
        self.min_saved_tokens = min_saved_tokens
        empty = torch.empty(0, dtype=pool.keys[0].dtype, device=pool.keys[0].device)
        self._buffers = [empty, empty]
        self.windows: dict[int | None, None] = {}
        """The sliding windows that the model's layers have asked for so far."""

    def plan(self, rows: StepRows) -> AttentionStep:
        """Prepare whatever all layers share."""
        return _TorchStep(self, rows)

    def gather(self, layer: int, pages: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of the pages, [tokens, kv_heads, head_dim]; valid until the next gather.

        Fresh memory for every gather would cost more than the copy itself.
        """
        shape = (len(pages), *self.pool.keys[layer].shape[1:])
        size = int(np.prod(shape))
        gathered = []
        for place, source in enumerate((self.pool.keys[layer], self.pool.values[layer])):
            if self._buffers[place].numel() < size:
                self._buffers[place] = torch.empty(size, dtype=source.dtype, device=source.device)
            target = self._buffers[place][:size].view(shape)
            torch.index_select(source, 0, pages, out=target)
            gathered.append(target.flatten(0, 1))
        return gathered[0], gathered[1]


class _DecodePart(NamedTuple):
    """Some pages, and the decode rows that attend to them: `members` for each of `groups` tables.

    rows: int64[groups * members], in group order. pages: int64[groups * columns]. unread: places
    among the gathered tokens that nobody may read. mask: float [groups, tokens], 0 or -inf; None
    if everything may be read.
    """

    groups: int
    rows: torch.Tensor
    pages: torch.Tensor
    unread: torch.Tensor
    mask: torch.Tensor | None


class _TorchStep:
    """The rows of one step; see AttentionStep."""

    def __init__(self, backend: TorchAttention, rows: StepRows) -> None:
        self._backend = backend
        self._rows = rows
        self._page_size = backend.pool.page_size
        self._device = backend.pool.keys[0].device
        self._ends = rows.starts + rows.counts
        self._slots = self._to_device(self._new_slots())
        self._prefill_pages = [
            self._to_device(table[: -(-int(end) // self._page_size)].astype(np.int64))
            for table, end in zip(
                rows.tables[rows.num_decodes :], self._ends[rows.num_decodes :], strict=True
            )
        ]
        # By sliding window, as the layers of one model may differ. Those that earlier steps met are
        # prepared ahead of the first layer.
        self._parts: dict[int | None, list[_DecodePart]] = {}
        self._masks: dict[tuple[int, int | None], torch.Tensor | None] = {}
        for window in backend.windows:
            self._prepare(window)

    def _prepare(self, window: int | None) -> None:
        if self._rows.num_decodes:
            self._parts[window] = self._decode_parts(window)
        for row in range(self._rows.num_decodes, len(self._ends)):
            self._masks[row, window] = self._prefill_mask(row, window)

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scaling: float,
        window: int | None,
    ) -> torch.Tensor:
        """Write, then read; see AttentionStep."""
        if window not in self._backend.windows:
            self._backend.windows[window] = None
            self._prepare(window)
        pool = self._backend.pool
        pool.keys[layer].flatten(0, 1).index_copy_(0, self._slots, key)
        pool.values[layer].flatten(0, 1).index_copy_(0, self._slots, value)
        attended = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        decodes = self._rows.num_decodes
        if decodes:
            attended[:decodes] = self._decode(layer, query[:decodes], scaling, window)
        first = decodes
        for row in range(decodes, len(self._ends)):
            last = first + int(self._rows.counts[row])
            attended[first:last] = self._prefill(layer, row, query[first:last], scaling, window)
            first = last
        return attended

    # ---- decode

    def _decode(
        self, layer: int, query: torch.Tensor, scaling: float, window: int | None
    ) -> torch.Tensor:
        parts = self._parts[window]
        if sum(len(part.rows) for part in parts) == len(query):
            whole = torch.empty_like(query)
            for part in parts:
                whole[part.rows] = self._attend_whole(layer, query[part.rows], part, scaling)
            return whole
        total = torch.zeros(query.shape, dtype=torch.float32, device=query.device)
        weight = torch.full(query.shape[:2], -torch.inf, device=query.device)
        for part in parts:
            attended, weight_here = self._attend_part(layer, query, part, scaling)
            weight_before = weight[part.rows]
            weight_after = torch.logaddexp(weight_before, weight_here)
            share_before = torch.exp(weight_before - weight_after)[..., None]
            share_here = torch.exp(weight_here - weight_after)[..., None]
            total[part.rows] = total[part.rows] * share_before + attended * share_here
            weight[part.rows] = weight_after
        return total.to(query.dtype)

    def _attend_whole(
        self, layer: int, query: torch.Tensor, part: _DecodePart, scaling: float
    ) -> torch.Tensor:
        """Attention of rows whose whole context is in the part: [rows, heads, head_dim].

        Here as below, the query heads that share a key head become rows of one matrix product.
        """
        keys, values = self._gather_part(layer, part)
        rows, heads, head_dim = query.shape
        attended = scaled_dot_product_attention(
            query.view(rows, keys.shape[2], -1, head_dim),
            keys.transpose(1, 2),
            values.transpose(1, 2),
            attn_mask=None if part.mask is None else part.mask[:, None, None].to(query.dtype),
            scale=scaling,
        )
        return attended.reshape(rows, heads, head_dim)

    def _attend_part(
        self, layer: int, query: torch.Tensor, part: _DecodePart, scaling: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Over the part's pages: [rows, heads, head_dim], and its log-sum-exp [rows, heads]."""
        keys, values = self._gather_part(layer, part)
        groups, tokens, kv_heads, head_dim = keys.shape
        rows = len(part.rows)
        by_row = (groups, rows // groups, kv_heads, query.shape[1] // kv_heads)
        queries = (query[part.rows] * scaling).view(*by_row, head_dim)
        queries = queries.permute(2, 0, 1, 3, 4).reshape(kv_heads, groups, -1, head_dim)
        scores = queries.new_empty((*queries.shape[:3], tokens))
        for head in range(kv_heads):
            torch.bmm(queries[head], keys[:, :, head].transpose(1, 2), out=scores[head])
        scores = scores.float()
        if part.mask is not None:
            scores += part.mask[:, None]
        shares = torch.softmax(scores, dim=-1)
        # The largest share is exp(highest score - log-sum-exp).
        weight = scores.amax(dim=-1) - shares.amax(dim=-1).log()
        shares = shares.to(query.dtype)
        attended = torch.empty_like(queries)
        for head in range(kv_heads):
            torch.bmm(shares[head], values[:, :, head], out=attended[head])
        by_head = (kv_heads, groups, by_row[1], by_row[3])
        return (
            attended.view(*by_head, head_dim).permute(1, 2, 0, 3, 4).reshape(rows, -1, head_dim),
            weight.view(by_head).permute(1, 2, 0, 3).reshape(rows, -1),
        )

    def _gather_part(self, layer: int, part: _DecodePart) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values, [groups, tokens, kv_heads, head_dim]; what nobody may read is zero."""
        keys, values = self._backend.gather(layer, part.pages)
        shape = (part.groups, -1, *keys.shape[1:])
        return (
            keys.index_fill_(0, part.unread, 0).view(shape),
            values.index_fill_(0, part.unread, 0).view(shape),
        )

    def _decode_parts(self, window: int | None) -> list[_DecodePart]:
        decodes, size = self._rows.num_decodes, self._page_size
        ends = self._ends[:decodes]
        lengths = -(-ends // size)
        tables = np.full(
            (decodes, int(lengths.max())), self._backend.pool.padding_page, dtype=np.int32
        )
        for row, length in enumerate(lengths.tolist()):
            tables[row, :length] = self._rows.tables[row][:length]
        lowest = np.zeros(decodes, dtype=np.int64)
        alone = np.zeros(decodes, dtype=np.int64)
        parts: list[_DecodePart] = []
        if window is not None and window < ends.max():
            lowest = np.maximum(0, ends - window)
            alone = lowest // size
        elif self._backend.share_prefixes and decodes > 1:
            min_pages = -(-self._backend.min_saved_tokens // size)
            segments, alone = shared_segments(tables, lengths, min_pages)
            for first, last, rows in segments:
                pages = tables[rows[:1], first:last]
                full = np.full(1, (last - first) * size)
                parts.append(self._part(rows, pages, np.zeros(1, dtype=np.int64), full))
        for rows in _similar_rows(lengths - alone, size):
            columns = alone[rows, None] + np.arange(int((lengths - alone)[rows].max()))
            inside = columns < lengths[rows, None]
            pages = tables[rows[:, None], np.where(inside, columns, 0)]
            pages[~inside] = self._backend.pool.padding_page
            offset = alone[rows] * size
            parts.append(self._part(rows, pages, lowest[rows] - offset, ends[rows] - offset))
        return parts

    def _part(
        self, rows: Indices, pages: npt.NDArray[np.int32], lowest: Indices, ends: Indices
    ) -> _DecodePart:
        """Rows of pages [groups, columns] of which tokens lowest..ends - 1 may be read."""
        places = np.arange(pages.shape[1] * self._page_size)
        readable = (places >= lowest[:, None]) & (places < ends[:, None])
        mask = None
        if not readable.all():
            mask = self._to_device(np.where(readable, np.float32(0), np.float32(-np.inf)))
        # What lies below `lowest` was computed and is merely masked.
        unread = np.flatnonzero(places >= ends[:, None])
        return _DecodePart(
            len(pages),
            self._to_device(rows),
            self._to_device(pages.ravel().astype(np.int64)),
            self._to_device(unread),
            mask,
        )

    # ---- prefill

    def _prefill(
        self, layer: int, row: int, query: torch.Tensor, scaling: float, window: int | None
    ) -> torch.Tensor:
        end = int(self._ends[row])
        pages = self._prefill_pages[row - self._rows.num_decodes]
        keys, values = (
            tensor[:end].transpose(0, 1)[None] for tensor in self._backend.gather(layer, pages)
        )
        mask = self._masks[row, window]
        attended = scaled_dot_product_attention(
            query.transpose(0, 1)[None],
            keys,
            values,
            attn_mask=mask,
            is_causal=mask is None,
            scale=scaling,
            enable_gqa=query.shape[1] != keys.shape[1],
        )
        return attended[0].transpose(0, 1)

    def _prefill_mask(self, row: int, window: int | None) -> torch.Tensor | None:
        """bool [new tokens, context]: causal on absolute positions; None where rows and columns
        start at the same position and no window ends them."""
        start, end = int(self._rows.starts[row]), int(self._ends[row])
        span = end if window is None else window
        if not start and span >= end:
            return None
        ages = torch.arange(start, end)[:, None] - torch.arange(end)
        return ((ages >= 0) & (ages < span)).to(self._device)

    # ---- places

    def _new_slots(self) -> Indices:
        """Where in the pool, counted in tokens, each new token's keys and values belong."""
        size = self._page_size
        slots = []
        for table, start, end in zip(self._rows.tables, self._rows.starts, self._ends, strict=True):
            positions = np.arange(start, end)
            slots.append(table[positions // size].astype(np.int64) * size + positions % size)
        return np.concatenate(slots)

    def _to_device(self, array: npt.NDArray[np.generic]) -> torch.Tensor:
        return torch.from_numpy(array).to(self._device)


def _similar_rows(lengths: Indices, page_size: int) -> list[Indices]:
    """All rows in groups of similar length in pages, so that padding is at most a third of a group.

    A few pages of padding are cheaper than another group, so a group also takes rows that fall
    short of its longest by no more than 32 tokens.
    """
    order = np.argsort(-lengths, kind="stable")
    groups: list[Indices] = []
    first = 0
    while first < len(order):
        longest = int(lengths[order[first]])
        shortest = min(-(-3 * longest // 4), longest - 32 // page_size)
        room = max(1, MAX_PART_TOKENS // (longest * page_size))
        fits = lengths[order[first : first + room]] >= shortest
        count = len(fits) if fits.all() else int(fits.argmin())
        groups.append(order[first : first + count])
        first += count
    return groups
