"""Recorder: collects what happens on one replica as columns; used by simulator and engine alike."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from testbed.core.batch import Batch
from testbed.core.records import STEP_COLUMNS, Columns, columns_of, request_row
from testbed.core.request import Sequence

if TYPE_CHECKING:
    from testbed.core.decode_run import Growth
    from testbed.core.scheduler import Scheduler


class Recorder:
    """The requests that left one replica, and the steps it made."""

    def __init__(self, replica: int, scheduler: Scheduler) -> None:
        self._replica = replica
        self._scheduler = scheduler
        self._requests: list[tuple[Any, ...]] = []
        self._steps: list[tuple[Any, ...]] = []
        self._runs: list[tuple[int, npt.NDArray[np.float64], Growth]] = []

    def left(self, sequence: Sequence) -> None:
        """A sequence finished or was refused."""
        self._requests.append(request_row(sequence, self._replica))

    def step(self, batch: Batch, start: float, end: float) -> None:
        """A step was scheduled (and takes its result for granted): call before commit."""
        scheduler = self._scheduler
        cache = scheduler.cache
        self._steps.append(
            (
                self._replica,
                batch.step,
                start,
                end,
                batch.shape.decode_rows,
                batch.shape.prefill_rows,
                batch.shape.prefill_tokens,
                len(scheduler.waiting),
                len(scheduler.running),
                cache.num_free_pages,
                cache.num_evictable_pages,
                cache.num_locked_pages,
                sum(map(len, scheduler.evicted)),
            )
        )

    def repeats(self, times: npt.NDArray[np.float64], growth: Growth) -> None:
        """The newest step was repeated: from times[0] to times[1], and so on.

        Nothing but time and pages changed meanwhile.
        """
        if len(times) > 1:
            self._runs.append((len(self._steps) - 1, times, growth))

    def requests(self) -> list[tuple[Any, ...]]:
        """Rows of REQUEST_COLUMNS, in the order of leaving."""
        return self._requests

    def steps(self) -> Columns:
        """All steps by STEP_COLUMNS, in step order."""
        recorded = columns_of(self._steps, STEP_COLUMNS)
        if not self._runs:
            return recorded
        lengths = np.ones(len(self._steps), dtype=np.int64)
        lengths[[index for index, _, _ in self._runs]] += [len(t) - 1 for _, t, _ in self._runs]
        steps = {name: np.repeat(values, lengths) for name, values in recorded.items()}
        first = np.cumsum(lengths) - lengths
        repeated = np.ones(len(steps["step"]), dtype=bool)
        repeated[first] = False
        # A replica's steps are numbered from 1 without gaps.
        steps["step"] = np.arange(1, len(repeated) + 1)
        steps["start_s"][repeated] = np.concatenate([times[:-1] for _, times, _ in self._runs])
        steps["end_s"][repeated] = np.concatenate([times[1:] for _, times, _ in self._runs])
        steps["evicted_pages"][repeated] = 0
        self._fill_books(steps, first, ~repeated)
        return steps

    def _fill_books(
        self, steps: Columns, first: npt.NDArray[np.int64], changed: npt.NDArray[np.bool_]
    ) -> None:
        """Free and evictable pages change in recorded steps and where a run takes pages.

        Free pages go first, then evicted ones, one for one.
        """
        growths = [growth for _, _, growth in self._runs]
        sizes = np.array([len(growth.counts) for growth in growths])
        if not sizes.any():
            return
        offsets = np.fromiter(chain.from_iterable(g.offsets for g in growths), np.int64)
        counts = np.fromiter(chain.from_iterable(g.counts for g in growths), np.int64)
        place = np.repeat(first[[index for index, _, _ in self._runs]], sizes) + offsets
        total = np.cumsum(counts)
        before = np.concatenate(([0], total))[np.cumsum(sizes) - sizes]
        used = total - np.repeat(before, sizes)
        free = np.repeat([growth.free for growth in growths], sizes)
        evictable = np.repeat([growth.evictable for growth in growths], sizes)
        short = np.maximum(used - free, 0)
        steps["evicted_pages"][place] = np.minimum(short, counts)
        changed[place] = True
        changes = np.flatnonzero(changed)
        lengths = np.diff(changes, append=len(changed))
        books = (("free_pages", np.maximum(free - used, 0)), ("evictable_pages", evictable - short))
        for name, values in books:
            steps[name][place] = values
            steps[name] = np.repeat(steps[name][changes], lengths)
