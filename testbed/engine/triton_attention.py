"""Paged attention with the Triton kernels of testbed_kernels, for GPUs.

Importing it imports Triton, so nothing else here does.
"""

from __future__ import annotations

import numpy as np
import torch

from testbed.engine.attention import StepRows
from testbed.engine.kv_pool import KVPool
from testbed.engine.model import AttentionStep
from testbed_kernels.batch import PagedBatch
from testbed_kernels.decode import paged_decode
from testbed_kernels.kv_write import write_kv
from testbed_kernels.prefill import paged_prefill


class TritonAttention:
    """Paged attention that reads the pool in place; see AttentionBackend."""

    def __init__(self, pool: KVPool) -> None:
        self.pool = pool

    def plan(self, rows: StepRows) -> AttentionStep:
        """Move lengths and page tables to the device, once for all layers."""
        return _TritonStep(self.pool, rows)


class _TritonStep:
    """The rows of one step; see AttentionStep."""

    def __init__(self, pool: KVPool, rows: StepRows) -> None:
        self._pool = pool
        starts = np.concatenate(([0], np.cumsum(rows.counts)))
        lengths = rows.starts + rows.counts
        pages = -(-lengths // pool.page_size)
        table = np.full((len(lengths), int(pages.max())), pool.padding_page, dtype=np.int32)
        for row, (used, filled) in enumerate(zip(pages.tolist(), rows.tables, strict=True)):
            table[row, :used] = filled[:used]
        device = pool.keys[0].device
        packed = np.concatenate((starts, lengths, table.ravel())).astype(np.int32)
        on_device = torch.from_numpy(packed).to(device)
        query_starts, kv_lens = on_device[: len(starts)], on_device[len(starts) : -table.size]
        page_table = on_device[-table.size :].view(table.shape)
        self._num_decodes = decodes = rows.num_decodes
        self._all = PagedBatch(query_starts, kv_lens, page_table)
        self._decodes = PagedBatch(
            query_starts[: decodes + 1], kv_lens[:decodes], page_table[:decodes]
        )
        # One query token each, so the decode rows end at row `decodes` of the queries.
        self._prefills = PagedBatch(
            query_starts[decodes:] - decodes, kv_lens[decodes:], page_table[decodes:]
        )

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
        write_kv(key, value, keys, values, self._all)
        decodes = self._num_decodes
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
                )
            )
        if self._prefills.num_sequences:
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
