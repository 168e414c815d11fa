"""DecodeRun: steps that repeat a decode batch with no decision in between, booked at once.

A driver that knows step times in advance (the simulator) asks quiet_steps how often a batch will
repeat, lets the time pass, and books the run. The result is exactly that of committing and
scheduling every step in turn; a property test compares the two record by record.
"""

from __future__ import annotations

from typing import NamedTuple

from testbed.core.batch import Batch
from testbed.core.decisions import DecisionLog, rows_digest
from testbed.core.page_pool import EMPTY_PAGES, Pages
from testbed.core.request import Sequence
from testbed.core.scheduler import Scheduler


class Growth(NamedTuple):
    """The pages that a run takes: `counts[i]` of them `offsets[i]` steps after its first step.

    free, evictable: the pages that were so before.
    """

    free: int
    evictable: int
    offsets: list[int]
    counts: list[int]


def quiet_steps(scheduler: Scheduler, batch: Batch) -> int:
    """How many steps, this one included, repeat the batch with no decision in between.

    Within them nobody finishes but in the last one, no pass could admit anybody, nobody is
    preempted, and no waiting sequence's match changes.
    """
    if batch.prefills or scheduler.prefilling or scheduler.delayed:
        return 1
    looks = scheduler.preempts or len(scheduler.running) < scheduler.config.max_running
    a_pass_looks = bool(scheduler.waiting) and looks
    if a_pass_looks and not scheduler.settled:
        return 1
    steps = scheduler.decoding.steps_to_finish()
    if steps > 1:
        available = scheduler.cache.pages_ahead(unnoticed=a_pass_looks)
        while steps > 1 and not scheduler.decoding.fits_ahead(steps, available):
            steps //= 2
    return steps


class DecodeRun:
    """One batch that repeats, at most quiet_steps times: first pages, then tokens.

    A step's pages are taken when it starts and its tokens are booked when it ends, so a run that
    is cut short has one step more of the former.
    """

    def __init__(self, scheduler: Scheduler, batch: Batch) -> None:
        self._scheduler = scheduler
        self._batch = batch
        self._booked = 0

    def start(self, steps: int) -> Growth:
        """Start steps 2..`steps`: take their pages. Called once."""
        scheduler = self._scheduler
        cache, decoding = scheduler.cache, scheduler.decoding
        takers: list[Sequence] = []
        growth = Growth(cache.num_free_pages, cache.num_evictable_pages, [], [])
        for offset, due in decoding.take_due_ahead(steps):
            takers += due
            growth.offsets.append(offset)
            growth.counts.append(len(due))
        scheduler.step = cache.step = self._batch.step + steps - 1
        scheduler.reserve.on_decode_steps(steps - 1)
        if takers:
            pages = cache.take(len(takers))
            scheduler.reserve.on_take(len(takers))
            for sequence, page in zip(takers, pages.tolist(), strict=True):
                sequence.pages[sequence.num_pages] = page
                sequence.num_pages += 1
        else:
            pages = EMPTY_PAGES
        if scheduler.log is not None:
            self._log(scheduler.log, steps, growth, pages)
        return growth

    def _log(self, log: DecisionLog, steps: int, growth: Growth, pages: Pages) -> None:
        """Write the rows that steps 2..`steps` would have written one by one."""
        first, rows = self._batch.step, len(self._batch.decodes)
        digest = rows_digest(self._batch)
        logged, used = 1, 0
        for offset, count in zip(growth.offsets, growth.counts, strict=True):
            log.batches(first + logged, offset - logged, rows, digest)
            taken = pages[used : used + count]
            # The free pages go first, then evicted ones, one for one.
            evicted = taken[max(0, growth.free - used) :]
            if len(evicted):
                log.evict(first + offset, evicted, self._scheduler.cache.page_size)
            log.batch(first + offset, rows, rows, digest, [taken])
            logged = offset + 1
            used += count
        log.batches(first + logged, steps - logged, rows, digest)

    def end(self, steps: int, now: float) -> list[Sequence]:
        """Steps up to number `steps` of the run have ended, the last of them at `now`.

        Returns who finished.
        """
        scheduler, count = self._scheduler, steps - self._booked
        self._booked = steps
        scheduler.now = now
        scheduler.decoding.advance(count)
        return scheduler.end_tokens(self._batch.decodes, count, now)
