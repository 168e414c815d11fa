"""One step's attention, cut into parts that all layers share: which tokens read which pages how."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from testbed.core.page_pool import Pages
from testbed.engine.attention_backend import StepRows
from testbed.engine.kv_pool import KVPool
from testbed.engine.shared_prefix import Indices, SharedSegment, shared_segments, similar_rows
from testbed_kernels.cpu_attention import DecodeRows, QueryRuns

MAX_PART_TOKENS = 65_536
"""Tokens of decode rows gathered at once, padding included; bounds the kept buffers."""

Queries: TypeAlias = slice | torch.Tensor
"""Places among the step's tokens."""
PageIds: TypeAlias = slice | torch.Tensor
"""Pages to read one after the other: a slice, which needs no copy, where their ids are too."""


class DecodePart(NamedTuple):
    """Decode rows, and what of their past no context part holds, their new token included.

    pages: int64[rows * columns], row after row. length: tokens that the longest reads. unread:
    places among the gathered tokens that nobody may read. mask: [rows, 1, 1, length], 0 or -inf;
    None if everything may be read.
    """

    queries: Queries
    pages: torch.Tensor
    length: int
    unread: torch.Tensor
    mask: torch.Tensor | None


class NewPart(NamedTuple):
    """Prefill rows, back to back from token `first` on, whose `length` new tokens each attend to
    one another: keys and values are at hand."""

    first: int
    rows: int
    length: int


class ContextPart(NamedTuple):
    """Pages whose first `length` tokens lie before all of the queries."""

    queries: Queries
    pages: PageIds
    length: int


class WholeRow(NamedTuple):
    """A prefill row that reads everything at once. mask: bool [queries, length], or causal."""

    queries: slice
    pages: PageIds
    length: int
    mask: torch.Tensor | None


class InPlace(NamedTuple):
    """What kernels read as it lies.

    decodes: the decode rows, and what of their past no run holds; None if there are none. runs:
    prefill rows, and pages that decode rows share, with whether to merge with what came before.
    """

    decodes: DecodeRows | None
    runs: list[tuple[QueryRuns, bool]]


class Layout(NamedTuple):
    """All parts of a step: in_place alone, or the others. Of decodes, news and wholes, each token
    is in one."""

    in_place: InPlace | None
    decodes: list[DecodePart]
    news: list[NewPart]
    contexts: list[ContextPart]
    wholes: list[WholeRow]


class SharingPays(NamedTuple):
    """From when on it pays to read pages once for the rows that share them.

    rows: for how many it takes as long as reading them apart. tokens: that must be spared beyond.
    """

    rows: int
    tokens: int


class LayoutPlan:
    """Cuts the rows of one step.

    sharing: from when on a shared run of pages is a part; None if no run is. reads_in_place:
    whether there are kernels that do. cuts_prefills: whether, without them, what a prefill row has
    cached may be a part of its own.
    """

    def __init__(
        self,
        rows: StepRows,
        pool: KVPool,
        sharing: SharingPays | None,
        reads_in_place: bool,
        cuts_prefills: bool,
    ) -> None:
        self._rows = rows
        self._padding_page = pool.padding_page
        self._page_size = pool.page_size
        self._dtype, self._device = pool.keys[0].dtype, pool.keys[0].device
        self._sharing = sharing
        self._reads_in_place = reads_in_place
        self._cuts_prefills = cuts_prefills
        self._ends = rows.starts + rows.counts
        self._firsts = np.cumsum(rows.counts) - rows.counts

    def layout(self, window: int | None) -> Layout:
        """For layers with this sliding window."""
        if window is not None and window >= self._ends.max():
            window = None
        rows, size, decodes = self._rows, self._page_size, self._rows.num_decodes
        cuts_prefills = window is None and self._cuts_prefills and not self._reads_in_place
        shareable = rows.starts // size
        if not cuts_prefills:
            shareable[decodes:] = 0
        segments: list[SharedSegment] = []
        alone = np.zeros_like(shareable)
        if self._sharing is not None and window is None:
            tables = self._tables(np.arange(len(shareable)), np.zeros_like(shareable), shareable)
            segments, alone = shared_segments(
                tables, shareable, -(-self._sharing.tokens // size), self._sharing.rows
            )
        if self._reads_in_place:
            return Layout(self._in_place(segments, alone, window), [], [], [], [])
        contexts = [
            ContextPart(
                self._places(members),
                self._page_ids(rows.tables[members[0]][first:last]),
                (last - first) * size,
            )
            for first, last, members in segments
        ]
        decode_parts = []
        if decodes:
            lengths = -(-self._ends[:decodes] // size) - alone[:decodes]
            decode_parts = [
                self._decode_part(members, alone[members], window)
                for members in similar_rows(lengths, size, MAX_PART_TOKENS)
            ]
        prefills = range(decodes, len(rows.counts))
        if not cuts_prefills:
            wholes = [self._whole_row(row, window) for row in prefills]
            return Layout(None, decode_parts, [], contexts, wholes)
        for row in prefills:
            length = int(rows.starts[row] - alone[row] * size)
            if length:
                pages = self._page_ids(rows.tables[row][alone[row] :][: -(-length // size)])
                contexts.append(ContextPart(self._places(np.array([row])), pages, length))
        return Layout(None, decode_parts, self._new_parts(), contexts, [])

    def _in_place(
        self, segments: list[SharedSegment], alone: Indices, window: int | None
    ) -> InPlace:
        """Prefill rows read shared pages each by themselves: their time goes to arithmetic."""
        rows, size, decodes = self._rows, self._page_size, self._rows.num_decodes
        spans = zip(rows.starts, self._ends, strict=True)
        ends = np.concatenate([np.arange(start, end) for start, end in spans]) + 1
        firsts = np.zeros_like(ends) if window is None else np.maximum(0, ends - window)
        decode_rows = None
        if decodes:
            lowest = np.maximum(firsts[:decodes], alone[:decodes] * size)
            arrays = (*_joined(rows.tables[:decodes]), lowest, ends[:decodes])
            decode_rows = DecodeRows(*map(self._to_device, arrays))
        runs = []
        for first, last, members in segments:
            zeros = np.zeros_like(members)
            tables, reach = [rows.tables[members[0]][first:last]], (last - first) * size
            shared = self._query_runs(tables, [len(members)], members, zeros, zeros + reach)
            runs.append((shared, True))
        if decodes < len(rows.counts):
            places, tables = np.arange(decodes, len(ends)), rows.tables[decodes:]
            counts = rows.counts[decodes:].tolist()
            prefills = self._query_runs(tables, counts, places, firsts[decodes:], ends[decodes:])
            runs.append((prefills, False))
        return InPlace(decode_rows, runs)

    def _query_runs(
        self, tables: Sequence[Pages], counts: list[int], *by_token: Indices
    ) -> QueryRuns:
        """by_token: the places, firsts and ends of QueryRuns."""
        bounds = np.cumsum([0, *counts])
        arrays: list[npt.NDArray[np.generic]] = [*_joined(tables), bounds, *by_token]
        return QueryRuns(*map(self._to_device, arrays))

    def _decode_part(self, rows: Indices, alone: Indices, window: int | None) -> DecodePart:
        size = self._page_size
        ends = self._ends[rows]
        lowest = alone * size
        if window is not None:
            lowest = np.maximum(0, ends - window)
            alone = lowest // size
        tables = self._tables(rows, alone, -(-ends // size))
        places = alone[:, None] * size + np.arange(tables.shape[1] * size)
        # What lies below `lowest` was computed and is merely masked.
        unread = np.flatnonzero(places >= ends[:, None])
        length = int((ends - alone * size).max())
        readable = ((places >= lowest[:, None]) & (places < ends[:, None]))[:, None, None, :length]
        mask = None
        if not readable.all():
            values = np.where(readable, np.float32(0), np.float32(-np.inf))
            mask = self._to_device(values).to(self._dtype)
        return DecodePart(
            self._places(rows),
            self._to_device(tables.ravel().astype(np.int64)),
            length,
            self._to_device(unread),
            mask,
        )

    def _new_parts(self) -> list[NewPart]:
        """Rows that are neighbours and have equally many new tokens are one batch."""
        parts: list[NewPart] = []
        for row in range(self._rows.num_decodes, len(self._rows.counts)):
            count = int(self._rows.counts[row])
            if parts and parts[-1].length == count:
                parts[-1] = parts[-1]._replace(rows=parts[-1].rows + 1)
            else:
                parts.append(NewPart(int(self._firsts[row]), 1, count))
        return parts

    def _whole_row(self, row: int, window: int | None) -> WholeRow:
        """Causal on absolute positions; without a mask where rows and columns start at the same
        position and no window ends them."""
        start, end = int(self._rows.starts[row]), int(self._ends[row])
        mask = None
        if start or window is not None:
            ages = torch.arange(start, end)[:, None] - torch.arange(end)
            mask = ((ages >= 0) & (ages < (end if window is None else window))).to(self._device)
        first = int(self._firsts[row])
        pages = self._page_ids(self._rows.tables[row][: -(-end // self._page_size)])
        return WholeRow(slice(first, first + end - start), pages, end, mask)

    def _tables(self, rows: Indices, firsts: Indices, lasts: Indices) -> npt.NDArray[np.int32]:
        """Pages firsts[i]..lasts[i] - 1 of the tables of rows[i], padded to a rectangle."""
        shape = (len(rows), int((lasts - firsts).max(initial=0)))
        tables = np.full(shape, self._padding_page, dtype=np.int32)
        for place, (row, first, last) in enumerate(zip(rows, firsts, lasts, strict=True)):
            tables[place, : last - first] = self._rows.tables[row][first:last]
        return tables

    def _places(self, rows: Indices) -> Queries:
        """Of the rows' new tokens, as a slice if they are back to back."""
        firsts, counts = self._firsts[rows], self._rows.counts[rows]
        if (firsts[1:] == firsts[:-1] + counts[:-1]).all():
            return slice(int(firsts[0]), int(firsts[-1] + counts[-1]))
        spans = [np.arange(f, f + n) for f, n in zip(firsts, counts, strict=True)]
        return self._to_device(np.concatenate(spans))

    def _page_ids(self, pages: npt.NDArray[np.int32]) -> PageIds:
        if (np.diff(pages) == 1).all():
            return slice(int(pages[0]), int(pages[-1]) + 1)
        return self._to_device(pages.astype(np.int64))

    def _to_device(self, array: npt.NDArray[np.generic]) -> torch.Tensor:
        return torch.from_numpy(array).to(self._device)


def _joined(tables: Sequence[Pages]) -> tuple[Pages, Indices]:
    """The tables as one, and where in it each begins."""
    lengths = np.array([len(table) for table in tables])
    return np.concatenate(tables).astype(np.int32, copy=False), np.cumsum(lengths) - lengths
