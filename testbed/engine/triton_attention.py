"""Paged attention with the Triton kernels of testbed_kernels, for GPUs.

Importing it imports Triton, so nothing else here does.
"""

from __future__ import annotations

import numpy as np
import torch

from testbed.engine.attention_backend import StepRows
from testbed.engine.kv_pool import KVPool
from testbed.engine.model import AttentionStep, Model
from testbed.engine.shared_prefix import Indices, shared_segments
from testbed_kernels.batch import PagedBatch
from testbed_kernels.decode import paged_decode
from testbed_kernels.kv_write import write_kv
from testbed_kernels.launch import cores_of
from testbed_kernels.prefill import paged_prefill
from testbed_kernels.shared_prefix import (
    PROGRAMS_PER_CORE,
    Ints,
    SharedCut,
    SharedPrefixes,
    cut_segments,
    shared_launch,
)

MIN_SAVED_BYTES = 150_000_000
"""Bytes that sharing a segment must spare a layer from reading before a part of its own pays.

m sequences that share P tokens of c bytes a layer read m P c bytes apart and P c together. Below 10
MB of P c the L2 caches of large cards serve the repeated reads, and below 16 sequences little is
repeated: 15 x 10 MB. An estimate from bytes alone; the `sharing` part of experiments/gpu measures
where the crossing lies.
"""


class TritonAttention:
    """Paged attention that reads the pool in place; see AttentionBackend.

    share_prefixes: let decode rows read shared pages once. min_saved_bytes: from how many spared
    bytes a layer on.
    """

    def __init__(
        self,
        model: Model,
        pool: KVPool,
        *,
        share_prefixes: bool = True,
        min_saved_bytes: int = MIN_SAVED_BYTES,
    ) -> None:
        self.pool = pool
        self.share_prefixes = share_prefixes
        bytes_per_page = model.kv_bytes_per_token // model.num_layers * pool.page_size
        self._min_saved_pages = max(1, -(-min_saved_bytes // bytes_per_page))
        self._group = model.num_heads // model.num_kv_heads
        self.block_m = shared_launch(pool.keys[0]).block_m
        """Rows of an item of shared pages."""
        cores = cores_of(model.device)
        self._shared_programs = max(1, PROGRAMS_PER_CORE * cores // model.num_kv_heads)

    def plan(self, rows: StepRows) -> AttentionStep:
        """Move lengths and page tables to the device, once for all layers."""
        starts = np.concatenate(([0], np.cumsum(rows.counts))).astype(np.int32)
        lengths = (rows.starts + rows.counts).astype(np.int32)
        table = self.page_table(rows)
        decodes = rows.num_decodes
        cut = self.cut_shared(table[:decodes], lengths[:decodes])
        arrays = [starts, lengths, table]
        if cut is not None:
            arrays += [cut.items, cut.members, cut.suffix_starts, cut.shared_parts]
        query_starts, kv_lens, page_table, *shared_tensors = self._to_device(arrays)
        shared = None
        if cut is not None:
            items, members, suffix_starts, shared_parts = shared_tensors
            shared = SharedPrefixes(
                items, members, suffix_starts, shared_parts, cut.max_parts, cut.block_m
            )
        return TritonStep(
            self.pool,
            PagedBatch(query_starts, kv_lens, page_table),
            PagedBatch(query_starts[: decodes + 1], kv_lens[:decodes], page_table[:decodes]),
            # One query token each, so the decode rows end at row `decodes` of the queries.
            PagedBatch(query_starts[decodes:] - decodes, kv_lens[decodes:], page_table[decodes:]),
            shared,
        )

    def page_table(self, rows: StepRows) -> Ints:
        """int32[rows, pages]: the rows' tables as far as they are used, padded on the right."""
        pages = -(-(rows.starts + rows.counts) // self.pool.page_size)
        table = np.full((len(pages), int(pages.max())), self.pool.padding_page, dtype=np.int32)
        for row, (used, filled) in enumerate(zip(pages.tolist(), rows.tables, strict=True)):
            table[row, :used] = filled[:used]
        return table

    def cut_shared(self, table: Ints, lengths: Ints) -> SharedCut | None:
        """What decode rows of such tables and lengths in tokens share; None if it does not pay."""
        if not self.share_prefixes or len(table) < 2:
            return None
        pages: Indices = -(-lengths.astype(np.int64) // self.pool.page_size)
        segments, _ = shared_segments(table, pages, self._min_saved_pages)
        if not segments:
            return None
        return cut_segments(
            segments,
            len(table),
            page_size=self.pool.page_size,
            group=self._group,
            block_m=self.block_m,
            programs=self._shared_programs,
        )

    def _to_device(self, arrays: list[Ints]) -> list[torch.Tensor]:
        """int32 arrays, moved in one piece."""
        packed = torch.from_numpy(np.concatenate([array.ravel() for array in arrays]))
        on_device = packed.to(self.pool.keys[0].device)
        tensors = torch.split(on_device, [array.size for array in arrays])
        return [t.view(array.shape) for t, array in zip(tensors, arrays, strict=True)]


class TritonStep:
    """The rows of one step; see AttentionStep.

    batch: all of them. decodes, prefills: its two ends, the latter counting its queries from 0.
    shared: the pages that decode rows share; None if they do not, or if it does not pay.
    """

    def __init__(
        self,
        pool: KVPool,
        batch: PagedBatch,
        decodes: PagedBatch,
        prefills: PagedBatch | None,
        shared: SharedPrefixes | None,
    ) -> None:
        self._pool = pool
        self._batch = batch
        self._decodes = decodes
        self._prefills = prefills
        self._shared = shared

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
        keys, values = self._pool.keys[layer], self._pool.values[layer]
        write_kv(key, value, keys, values, self._batch)
        decodes = self._decodes.num_sequences
        attended: list[torch.Tensor] = []
        if decodes:
            attended.append(
                paged_decode(
                    query[:decodes],
                    keys,
                    values,
                    self._decodes,
                    scale=scaling,
                    sliding_window=window,
                    shared=self._shared if window is None else None,
                )
            )
        if self._prefills is not None and self._prefills.num_sequences:
            attended.append(
                paged_prefill(
                    query[decodes:],
                    keys,
                    values,
                    self._prefills,
                    scale=scaling,
                    sliding_window=window,
                )
            )
        return attended[0] if len(attended) == 1 else torch.cat(attended)
