"""Decode steps as CUDA graphs: captured once for a batch size, replayed for every batch it holds.

A graph reads its inputs at fixed addresses, so a step copies them there: token ids, lengths and
page tables, rows up to the graph's size padded. A padding row is a sequence of one token whose KV
goes to the pool's padding page: real work, whose result nobody reads.
"""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

import numpy as np
import torch

from testbed.engine.attention_backend import StepRows
from testbed.engine.model import Model
from testbed.engine.shared_prefix import Indices
from testbed.engine.triton_attention import TritonAttention, TritonStep
from testbed_kernels.batch import PagedBatch
from testbed_kernels.shared_prefix import ITEM_FIELDS, Ints, SharedCut, SharedPrefixes

DEFAULT_SIZES = (1, 2, 4, 8, *range(16, 257, 16))
MAX_ITEMS = 256
"""Items of shared pages that a graph has room for; see SharedPrefixes."""
MAX_SHARED_PARTS = 32
MEMBERS_PER_ROW = 4
"""Shared segments that the average row of a full graph may be in."""
WARM_UPS = 2

Work: TypeAlias = Callable[[], torch.Tensor]


class Recorder(Protocol):
    """Turns work into something that does it again, over the same tensors."""

    def __call__(self, work: Work) -> Work:
        """The result's tensor is the same at each call."""
        ...


class CudaRecorder:
    """Captures work as a CUDA graph; all graphs of one recorder share their memory.

    So a graph's result is valid until another one of the same recorder runs.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._memory = torch.cuda.graph_pool_handle()

    def __call__(self, work: Work) -> Work:
        """Run the work a few times, as it may compile kernels, and capture it."""
        with torch.cuda.device(self._device):
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(WARM_UPS):
                    work()
            torch.cuda.current_stream().wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._memory):
                result = work()

        def replay() -> torch.Tensor:
            graph.replay()
            return result

        return replay


class DecodeBuffers:
    """The inputs of decode steps of up to max_rows sequences of up to max_tokens, at fixed places.

    The page table has a column more than max_tokens need. tokens, kv_lens: int32[max_rows].
    page_table: int32[max_rows, columns]. Where rows share pages: items, members, suffix_starts and
    shared_parts, see SharedPrefixes.
    """

    def __init__(self, attention: TritonAttention, max_rows: int, max_tokens: int) -> None:
        pool = attention.pool
        self._padding_page = pool.padding_page
        columns = -(-max_tokens // pool.page_size) + 1
        self.max_tokens = max_tokens
        sizes = {
            "tokens": max_rows,
            "kv_lens": max_rows,
            "suffix_starts": max_rows,
            "shared_parts": max_rows,
            "members": MEMBERS_PER_ROW * max_rows,
            "items": MAX_ITEMS * ITEM_FIELDS,
        }
        # One tensor, so that a step moves all but the page table in one piece.
        self._host = np.zeros(sum(sizes.values()), dtype=np.int32)
        device = pool.keys[0].device
        self._inputs = torch.zeros(len(self._host), dtype=torch.int32, device=device)
        places = np.split(np.arange(len(self._host)), np.cumsum(list(sizes.values()))[:-1])
        self._slices = {
            name: slice(int(place[0]), int(place[-1]) + 1)
            for name, place in zip(sizes, places, strict=True)
        }
        self.page_table = torch.full(
            (max_rows, columns), self._padding_page, dtype=torch.int32, device=device
        )
        self._filled_columns = np.zeros(max_rows, dtype=np.int64)
        self._query_starts = torch.arange(max_rows + 1, dtype=torch.int32, device=device)
        self._logit_rows = torch.arange(max_rows, dtype=torch.int64, device=device)
        self.clear(max_rows)

    def clear(self, size: int) -> None:
        """Make padding rows of the first `size`."""
        none = np.zeros(0, dtype=np.int32)
        self.fill(size, none, none, np.zeros((0, 1), dtype=np.int32), None)

    def fill(
        self,
        size: int,
        tokens: Ints,
        kv_lens: Ints,
        table: Ints,
        cut: SharedCut | None,
    ) -> None:
        """Copy a step's inputs in, padded to `size` rows; what earlier steps left is cleared."""
        rows = len(tokens)
        host = self._host
        host[:] = 0
        host[self._slices["tokens"]][:rows] = tokens
        # Length 0 would be no row at all: its attention is over nothing.
        host[self._slices["kv_lens"]] = 1
        host[self._slices["kv_lens"]][:rows] = kv_lens
        if cut is not None:
            for name in ("suffix_starts", "shared_parts", "members"):
                part = getattr(cut, name)
                host[self._slices[name]][: len(part)] = part
            host[self._slices["items"]][: cut.items.size] = cut.items.ravel()
        self._inputs.copy_(torch.from_numpy(host))
        width = max(table.shape[1], int(self._filled_columns[:size].max()))
        padded = np.full((size, width), self._padding_page, dtype=np.int32)
        padded[:rows, : table.shape[1]] = table
        self.page_table[:size, :width].copy_(torch.from_numpy(padded))
        self._filled_columns[:size] = table.shape[1]

    def holds(self, cut: SharedCut) -> bool:
        """Whether there is room for what rows share."""
        return (
            len(cut.items) <= MAX_ITEMS
            and cut.max_parts <= MAX_SHARED_PARTS
            and len(cut.members) <= len(self["members"])
        )

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._inputs[self._slices[name]]

    def work(self, model: Model, attention: TritonAttention, size: int, shares: bool) -> Work:
        """What computes float32 logits [size, vocab_size] from whatever the buffers hold."""
        kv_lens = self["kv_lens"][:size]
        batch = PagedBatch(self._query_starts[: size + 1], kv_lens, self.page_table[:size])
        shared = None
        if shares:
            shared = SharedPrefixes(
                self["items"].view(MAX_ITEMS, ITEM_FIELDS),
                self["members"],
                self["suffix_starts"][:size],
                self["shared_parts"][:size],
                MAX_SHARED_PARTS,
                attention.block_m,
            )
        step = TritonStep(attention.pool, batch, batch, None, shared)
        tokens = self["tokens"][:size]

        def forward() -> torch.Tensor:
            positions = kv_lens.long() - 1
            return model.forward(tokens.long(), positions, self._logit_rows[:size], step)

        return forward


class DecodeGraphs:
    """Captured decode steps of a model.

    sizes: rows of the graphs; a batch runs in the smallest that holds it. max_tokens: of the
    longest sequence; None for the model's context, or the pool where that is smaller. record:
    captures a step, by default as a CUDA graph.
    """

    def __init__(
        self,
        model: Model,
        attention: TritonAttention,
        *,
        sizes: Sequence[int] = DEFAULT_SIZES,
        max_tokens: int | None = None,
        record: Recorder | None = None,
    ) -> None:
        if not sizes or min(sizes) < 1:
            raise ValueError(f"sizes={list(sizes)}: at least one, each at least 1, is needed")
        self.sizes = tuple(sorted(set(sizes)))
        pool = attention.pool
        limit = min(model.context_tokens, pool.num_pages * pool.page_size)
        self._model = model
        self._attention = attention
        self._record = record or CudaRecorder(model.device)
        self._buffers = DecodeBuffers(attention, self.sizes[-1], max_tokens or limit)
        self._graphs: dict[tuple[int, bool], Work] = {}

    @torch.inference_mode()
    def capture(self) -> None:
        """Capture every size ahead of the first step, the largest first: the others reuse its
        memory. Left out, a size is captured when a batch needs it."""
        for size in reversed(self.sizes):
            self._buffers.clear(size)
            for shares in (False, True) if self._attention.share_prefixes else (False,):
                self._graph(size, shares)

    def prepare(self, tokens: Indices, rows: StepRows) -> Work | None:
        """Copy a decode step's inputs in; what computes its logits, float32 [rows, vocab_size].

        None if no graph holds the step: prefill rows, too many rows, too long a sequence. Called in
        inference mode.
        """
        num_rows = len(rows.counts)
        size = next((size for size in self.sizes if size >= num_rows), None)
        ends = (rows.starts + rows.counts).astype(np.int32)
        if size is None or rows.num_decodes < num_rows or ends.max() > self._buffers.max_tokens:
            return None
        table = self._attention.page_table(rows)
        cut = self._attention.cut_shared(table, ends)
        if cut is not None and not self._buffers.holds(cut):
            cut = None
        self._buffers.fill(size, tokens.astype(np.int32), ends, table, cut)
        replay = self._graph(size, cut is not None)
        return lambda: replay()[:num_rows]

    def _graph(self, size: int, shares: bool) -> Work:
        if (size, shares) not in self._graphs:
            work = self._buffers.work(self._model, self._attention, size, shares)
            self._graphs[size, shares] = self._record(work)
        return self._graphs[size, shares]
