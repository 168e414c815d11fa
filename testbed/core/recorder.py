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
        self._runs: list[tuple[tuple[Any, ...], npt.NDArray[np.float64], Growth]] = []

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
            self._runs.append((self._steps[-1], times, growth))

    def requests(self) -> list[tuple[Any, ...]]:
        """Rows of REQUEST_COLUMNS, in the order of leaving."""
        return self._requests

    def steps(self) -> Columns:
        """All steps by STEP_COLUMNS, in step order."""
        single = columns_of(self._steps, STEP_COLUMNS)
        if not self._runs:
            return single
        counts = np.array([len(times) - 1 for _, times, _ in self._runs])
        repeated = columns_of([first for first, _, _ in self._runs], STEP_COLUMNS)
        run = {name: np.repeat(values, counts) for name, values in repeated.items()}
        starts = np.concatenate(([0], np.cumsum(counts)))
        run["step"] += np.arange(1, starts[-1] + 1) - np.repeat(starts[:-1], counts)
        run["start_s"] = np.concatenate([times[:-1] for _, times, _ in self._runs])
        run["end_s"] = np.concatenate([times[1:] for _, times, _ in self._runs])
        run["evicted_pages"][:] = 0
        self._fill_books(run, starts[:-1])
        order = np.argsort(np.concatenate((single["step"], run["step"])))
        return {name: np.concatenate((single[name], run[name]))[order] for name in STEP_COLUMNS}

    def _fill_books(self, run: Columns, starts: npt.NDArray[np.int64]) -> None:
        """Free and evictable pages change where a run begins and where it takes pages.

        Free pages go first, then evicted ones, one for one.
        """
        growths = [growth for _, _, growth in self._runs]
        sizes = np.array([len(growth.counts) for growth in growths])
        if not sizes.any():
            return
        offsets = np.fromiter(chain.from_iterable(g.offsets for g in growths), np.int64)
        counts = np.fromiter(chain.from_iterable(g.counts for g in growths), np.int64)
        place = np.repeat(starts, sizes) + offsets - 1
        total = np.cumsum(counts)
        ends = np.cumsum(sizes)
        before = np.concatenate(([0], total))[ends - sizes]
        used = total - np.repeat(before, sizes)
        free = np.repeat([growth.free for growth in growths], sizes)
        evictable = np.repeat([growth.evictable for growth in growths], sizes)
        short = np.maximum(used - free, 0)
        run["evicted_pages"][place] = np.minimum(short, counts)
        changes = np.union1d(starts, place)
        lengths = np.diff(changes, append=len(run["step"]))
        books = (("free_pages", np.maximum(free - used, 0)), ("evictable_pages", evictable - short))
        for name, values in books:
            run[name][place] = values
            run[name] = np.repeat(run[name][changes], lengths)
