"""A bounded sample of a log of any length: runs of consecutive requests, evenly spread over it."""

from __future__ import annotations

from collections.abc import Sequence

from testbed.workloads.formats.record import Record


class RunSample:
    """Keeps every n-th run of consecutive records; n doubles whenever there are too many runs.

    A run holds up to run_records records or run_chars characters, so that memory is bounded by
    max_runs * run_chars and one record. While n is 1 nothing has been left out. Consecutive
    records are kept together because what they share depends on what came just before.
    """

    def __init__(
        self, max_runs: int = 16, run_records: int = 1000, run_chars: int = 8_000_000
    ) -> None:
        self._max_runs = max_runs
        self._run_records = run_records
        self._run_chars = run_chars
        self._kept: list[list[Record]] = []
        self._open: list[Record] = []
        self._open_chars = 0
        self._runs_begun = 1
        self._every = 1

    def add(self, record: Record) -> None:
        """The next record of the log."""
        if len(self._open) >= self._run_records or self._open_chars >= self._run_chars:
            self._close()
            self._runs_begun += 1
        self._open_chars += sum(len(segment.content) for segment in record.segments)
        # A run that will not be kept is only measured.
        keep = (self._runs_begun - 1) % self._every == 0
        self._open.append(record if keep else _LEFT_OUT)

    @property
    def is_whole(self) -> bool:
        """Whether the sample is the whole log."""
        return self._every == 1

    @property
    def runs(self) -> Sequence[Sequence[Record]]:
        """The kept runs in order; one, if nothing was left out between them."""
        last = [record for record in self._open if record is not _LEFT_OUT]
        runs = [*self._kept, last] if last else list(self._kept)
        if self.is_whole:
            return [[record for run in runs for record in run]]
        return runs

    def _close(self) -> None:
        if self._open[0] is not _LEFT_OUT:
            self._kept.append(self._open)
        self._open = []
        self._open_chars = 0
        if len(self._kept) > self._max_runs:
            self._kept = self._kept[::2]
            self._every *= 2


_LEFT_OUT = Record(0, ())
