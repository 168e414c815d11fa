"""Paged attention in plain torch, on any device.

The step's keys and values are written to the pool first; then every row reads all it may see
through its page table, in parts that merge by their log-sum-exp: pages that several rows share are
read once for all of them, and what a prefill row has cached needs no mask. Compiled kernels read
the pages in place; where there are none, decode rows of similar length are gathered as one batch.
"""

from __future__ import annotations

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.profiler import record_function

from testbed.engine.attention_backend import StepRows
from testbed.engine.attention_layout import (
    ContextPart,
    DecodePart,
    InPlace,
    LayoutPlan,
    NewPart,
    PageIds,
    SharingPays,
    WholeRow,
)
from testbed.engine.kv_pool import KVPool
from testbed.engine.model import AttentionStep
from testbed.engine.shared_prefix import Indices
from testbed_kernels.cpu_attention import cpu_decode, cpu_prefill, supported

GATHERED_SHARING = SharingPays(rows=1, tokens=512)
"""Where pages are copied before they are read."""
IN_PLACE_SHARING = SharingPays(rows=7, tokens=2048)
"""Where kernels read them as they lie: what several rows read stays in the CPU's caches, so only
arithmetic is spared."""


class TorchAttention:
    """Paged attention with torch operations over the pool.

    share_prefixes: let rows read shared pages once. sharing: where that pays; None where it does by
    what was measured.
    """

    def __init__(
        self, pool: KVPool, *, share_prefixes: bool = True, sharing: SharingPays | None = None
    ) -> None:
        self.pool = pool
        self.share_prefixes = share_prefixes
        empty = torch.empty(0, dtype=pool.keys[0].dtype, device=pool.keys[0].device)
        self._buffers = [empty, empty]
        self.fused = empty.device.type == "cpu"
        """Whether torch has attention in one piece that tells the log-sum-exp of the scores."""
        self.reads_in_place = supported(pool.keys[0])
        """Whether compiled kernels attend."""
        self.sharing = sharing or (IN_PLACE_SHARING if self.reads_in_place else GATHERED_SHARING)
        self.windows: dict[int | None, None] = {}
        """The sliding windows that the model's layers have asked for so far."""

    def plan(self, rows: StepRows) -> AttentionStep:
        """Prepare whatever all layers share."""
        return _TorchStep(self, rows)

    def read(self, layer: int, pages: PageIds) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of the pages, [tokens, kv_heads, head_dim], not to be written to; valid
        until the next gather."""
        if isinstance(pages, slice):
            keys, values = self.pool.keys[layer][pages], self.pool.values[layer][pages]
            return keys.flatten(0, 1), values.flatten(0, 1)
        return self.gather(layer, pages)

    def gather(self, layer: int, pages: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Copies of the pages' keys and values, [tokens, kv_heads, head_dim]; valid until the next
        gather.

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

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scaling: float,
        mask: torch.Tensor | None = None,
        causal: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Attention, and the log-sum-exp of its scores [batch, heads, queries], both float32.

        query: [batch, heads, queries, head_dim]; key, value: [batch, heads, keys, head_dim].
        mask is added to the scores. causal: in one piece only.
        """
        if self.fused:
            attended, weight = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
                query, key, value, is_causal=causal, attn_mask=mask, scale=scaling
            )
            return attended.float(), weight
        scores = (query * scaling @ key.transpose(-1, -2)).float()
        if mask is not None:
            scores += mask
        shares = torch.softmax(scores, dim=-1)
        # The largest share is exp(highest score - log-sum-exp).
        weight = scores.amax(dim=-1) - shares.amax(dim=-1).log()
        return (shares.to(value.dtype) @ value).float(), weight


class _TorchStep:
    """The rows of one step; see AttentionStep."""

    def __init__(self, backend: TorchAttention, rows: StepRows) -> None:
        self._backend = backend
        self._device = backend.pool.keys[0].device
        self._slots = torch.from_numpy(_new_slots(rows, backend.pool.page_size)).to(self._device)
        self._plan = LayoutPlan(
            rows,
            backend.pool,
            backend.sharing if backend.share_prefixes else None,
            backend.reads_in_place,
            # The matrix of a long chunk's scores would be too large.
            cuts_prefills=backend.fused,
        )
        # By sliding window, as the layers of one model may differ. Those that earlier steps met are
        # prepared ahead of the first layer.
        self._layouts = {window: self._plan.layout(window) for window in backend.windows}

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
        if window not in self._layouts:
            self._backend.windows[window] = None
            self._layouts[window] = self._plan.layout(window)
        layout = self._layouts[window]
        pool = self._backend.pool
        pool.keys[layer].flatten(0, 1).index_copy_(0, self._slots, key)
        pool.values[layer].flatten(0, 1).index_copy_(0, self._slots, value)
        # The query heads that share a key head stand beside it.
        queries = query.reshape(len(query), key.shape[1], -1, query.shape[2])
        attended = torch.empty(queries.shape, device=self._device)
        weight = torch.empty(queries.shape[:3], device=self._device)
        if layout.in_place is not None:
            with record_function("testbed::cpu_attention"):
                tensors = queries.contiguous(), attended, weight
                self._in_place(layer, layout.in_place, tensors, scaling)
        for decode in layout.decodes:
            part = self._decode(layer, queries[decode.queries], decode, scaling)
            attended[decode.queries], weight[decode.queries] = part
        for new in layout.news:
            self._new(new, (queries, key, value, attended, weight), scaling)
        for context in layout.contexts:
            here, weight_here = self._context(layer, queries[context.queries], context, scaling)
            # Views where the queries are a slice: a step's outputs are too large to copy again.
            there, before = attended[context.queries], weight[context.queries]
            there.lerp_(here, torch.sigmoid(weight_here - before)[..., None])
            # The last one's is read by nobody.
            if context is not layout.contexts[-1]:
                torch.logaddexp(before, weight_here, out=before)
            if not isinstance(context.queries, slice):
                attended[context.queries], weight[context.queries] = there, before
        result = attended.to(query.dtype).view(query.shape)
        for row in layout.wholes:
            result[row.queries] = self._whole(layer, query[row.queries], row, scaling)
        return result

    def _in_place(
        self, layer: int, parts: InPlace, tensors: tuple[torch.Tensor, ...], scaling: float
    ) -> None:
        """Fills in attended [tokens, kv_heads, group, head_dim] and weight, the last of tensors."""
        queries, attended, weight = tensors
        keys, values = self._backend.pool.keys[layer], self._backend.pool.values[layer]
        if parts.decodes is not None:
            rows = slice(len(parts.decodes.ends))
            cpu_decode(
                queries[rows], keys, values, parts.decodes,
                scale=scaling, out=attended[rows], weight=weight[rows],
            )  # fmt: skip
        for runs, merge in parts.runs:
            cpu_prefill(
                queries, keys, values, runs,
                merge=merge, scale=scaling, out=attended, weight=weight,
            )  # fmt: skip

    def _decode(
        self, layer: int, queries: torch.Tensor, part: DecodePart, scaling: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """[rows, kv_heads, group, head_dim], and the log-sum-exp of its scores."""
        rows = len(queries)
        keys, values = (
            tensor.index_fill_(0, part.unread, 0)
            .view(rows, -1, *tensor.shape[1:])[:, : part.length]
            .transpose(1, 2)
            for tensor in self._backend.gather(layer, part.pages)
        )
        return self._backend.attend(queries, keys, values, scaling, part.mask)

    def _new(self, part: NewPart, tensors: tuple[torch.Tensor, ...], scaling: float) -> None:
        """Fills in attended [tokens, kv_heads, group, head_dim] and weight, the last of tensors."""
        span = slice(part.first, part.first + part.rows * part.length)
        queries, keys, values, attended, weight = (
            tensor[span].view(part.rows, part.length, *tensor.shape[1:]).transpose(1, 2)
            for tensor in tensors
        )
        for place in range(queries.shape[3]):
            attended[:, :, :, place], weight[:, :, :, place] = self._backend.attend(
                queries[:, :, :, place], keys, values, scaling, causal=True
            )

    def _context(
        self, layer: int, queries: torch.Tensor, part: ContextPart, scaling: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """[tokens, kv_heads, group, head_dim], and the log-sum-exp of its scores."""
        keys, values = (
            tensor[: part.length].transpose(0, 1)[None]
            for tensor in self._backend.read(layer, part.pages)
        )
        tokens, kv_heads, group, head_dim = queries.shape
        # All heads of a group read the same keys, as if they were further tokens.
        folded = queries.transpose(0, 1).reshape(1, kv_heads, tokens * group, head_dim)
        attended, weight = self._backend.attend(folded, keys, values, scaling)
        by_head = (kv_heads, tokens, group)
        return (
            attended.view(*by_head, head_dim).transpose(0, 1),
            weight.view(by_head).transpose(0, 1),
        )

    def _whole(
        self, layer: int, query: torch.Tensor, row: WholeRow, scaling: float
    ) -> torch.Tensor:
        keys, values = (
            tensor[: row.length].transpose(0, 1)[None]
            for tensor in self._backend.read(layer, row.pages)
        )
        attended = scaled_dot_product_attention(
            query.transpose(0, 1)[None],
            keys,
            values,
            attn_mask=row.mask,
            is_causal=row.mask is None,
            scale=scaling,
            enable_gqa=query.shape[1] != keys.shape[1],
        )
        return attended[0].transpose(0, 1)


def _new_slots(rows: StepRows, page_size: int) -> Indices:
    """Where in the pool, counted in tokens, each new token's keys and values belong."""
    decodes = rows.num_decodes
    columns, offsets = np.divmod(rows.starts[:decodes], page_size)
    pages = [table[column] for table, column in zip(rows.tables, columns.tolist(), strict=False)]
    slots = [np.array(pages, dtype=np.int64) * page_size + offsets]
    for row in range(decodes, len(rows.counts)):
        positions = np.arange(rows.starts[row], rows.starts[row] + rows.counts[row])
        slots.append(rows.tables[row][positions // page_size].astype(np.int64) * page_size)
        slots[-1] += positions % page_size
    return np.concatenate(slots)
