"""DecisionLog: every admission, hit, batch, eviction and preemption, comparable and hashable.

Two backends that decide alike produce equal logs: the same batches in the same order, with the
same hit tokens, page ids, evictions and preemptions. Times are not decisions and are not in it.
"""

from __future__ import annotations

from collections.abc import Sequence as Rows
from hashlib import sha256
from zlib import crc32

import numpy as np

from testbed.core.batch import Batch
from testbed.core.page_pool import Pages
from testbed.core.records import DECISION_COLUMNS, Columns, columns_of
from testbed.core.request import Sequence

Decision = tuple[int, int, str, int, int, int, int]
"""One row of DECISION_COLUMNS."""


class DecisionLog:
    """The decisions of one replica in the order in which they were taken."""

    __slots__ = ("_replica", "rows")

    def __init__(self, replica: int = 0) -> None:
        self._replica = replica
        self.rows: list[Decision] = []

    def admit(self, step: int, sequence: Sequence, cached: int, extend: int) -> None:
        """The sequence runs; its page table at this moment is digested."""
        digest = crc32(sequence.pages[: sequence.num_pages].data)
        row = (self._replica, step, "admit", sequence.request.id, cached, extend, digest)
        self.rows.append(row)

    def batch(self, step: int, tokens: int, rows: int, digest: int, taken: list[Pages]) -> None:
        """One step's work: `digest` of its rows, chained with the pages taken for them."""
        for pages in taken:
            digest = crc32(pages.data, digest)
        self.rows.append((self._replica, step, "batch", -1, tokens, rows, digest))

    def batches(self, step: int, count: int, rows: int, digest: int) -> None:
        """`count` steps from `step` on repeat the same decode rows and take no page."""
        self.rows += [
            (self._replica, number, "batch", -1, rows, rows, digest)
            for number in range(step, step + count)
        ]

    def evict(self, step: int, pages: Pages, page_size: int) -> None:
        """The cached pages that left in this step, in order."""
        tokens = len(pages) * page_size
        self.rows.append((self._replica, step, "evict", -1, tokens, 0, crc32(pages.data)))

    def preempt(self, step: int, sequence: Sequence) -> None:
        """A running sequence lost its memory."""
        tokens = sequence.num_computed_tokens
        self.rows.append((self._replica, step, "preempt", sequence.request.id, tokens, 0, 0))

    def finish(self, step: int, sequence: Sequence) -> None:
        """A sequence produced its last token."""
        tokens = sequence.num_generated_tokens
        self.rows.append((self._replica, step, "finish", sequence.request.id, tokens, 0, 0))

    def refuse(self, step: int, sequence: Sequence) -> None:
        """A request was turned away."""
        tokens = sequence.num_prompt_tokens
        self.rows.append((self._replica, step, "refuse", sequence.request.id, tokens, 0, 0))

    def columns(self) -> Columns:
        """The log as arrays, by DECISION_COLUMNS."""
        return columns_of(self.rows, DECISION_COLUMNS)

    def hexdigest(self) -> str:
        """SHA-256 over all rows."""
        return sha256(repr(self.rows).encode()).hexdigest()

    def first_difference(self, other: DecisionLog) -> str | None:
        """One line that names the first decision that differs; None if the logs are equal."""
        return _first_difference(self.rows, other.rows)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DecisionLog) and self.rows == other.rows

    def __hash__(self) -> int:
        return int(self.hexdigest()[:15], 16)


def rows_digest(batch: Batch) -> int:
    """CRC-32 of the batch's rows: request ids and, for prefills, how many tokens."""
    ids = [sequence.request.id for sequence in batch.decodes]
    for sequence, _, count in batch.prefills:
        ids += (sequence.request.id, count)
    return crc32(np.array(ids, dtype=np.int64).data)


def _first_difference(ours: Rows[Decision], theirs: Rows[Decision]) -> str | None:
    for place, (a, b) in enumerate(zip(ours, theirs, strict=False)):
        if a != b:
            return f"decision {place}: {a} here, {b} there"
    if len(ours) != len(theirs):
        place = min(len(ours), len(theirs))
        longer, rows = ("here", ours) if len(ours) > place else ("there", theirs)
        return f"decision {place}: {rows[place]} only {longer}"
    return None
