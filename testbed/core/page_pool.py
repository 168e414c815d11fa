"""PagePool: which KV pages are free. Page ids are real: an engine indexes KV tensors by them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Pages = npt.NDArray[np.int32]
EMPTY_PAGES: Pages = np.empty(0, dtype=np.int32)


class PagePool:
    """Hands out page ids 0..num_pages-1: freed ones first, newest first, then ones never used.

    A pool larger than what a run touches costs nothing, so "unlimited" is just a large number.
    """

    __slots__ = ("_freed", "_num_freed", "_num_used", "num_free", "num_pages")

    num_free: int
    """Pages that nobody holds."""

    def __init__(self, num_pages: int) -> None:
        if not 1 <= num_pages < 2**31:
            raise ValueError(f"num_pages={num_pages}: a number from 1 to 2**31 - 1 is needed")
        self.num_pages = num_pages
        self.num_free = num_pages
        self._freed = np.empty(1024, dtype=np.int32)
        self._num_freed = 0
        self._num_used = 0

    def allocate(self, count: int) -> Pages:
        """Take `count` pages: a fresh int32[count]. The caller has checked num_free."""
        if count > self.num_free:
            raise ValueError(f"allocate({count}): only {self.num_free} pages are free")
        self.num_free -= count
        recycled = min(count, self._num_freed)
        start = self._num_freed - recycled
        pages = self._freed[start : self._num_freed][::-1]
        self._num_freed = start
        if recycled == count:
            return pages.copy()
        fresh = np.arange(self._num_used, self._num_used + count - recycled, dtype=np.int32)
        self._num_used += count - recycled
        return np.concatenate((pages, fresh)) if recycled else fresh

    def free(self, pages: Pages) -> None:
        """Give pages back."""
        self.num_free += len(pages)
        end = self._num_freed + len(pages)
        if end > len(self._freed):
            grown = np.empty(max(end, 2 * len(self._freed)), dtype=np.int32)
            grown[: self._num_freed] = self._freed[: self._num_freed]
            self._freed = grown
        self._freed[self._num_freed : end] = pages
        self._num_freed = end

    def free_pages(self) -> Pages:
        """The ids that are free now, for invariant checks: O(num_pages)."""
        never_used = np.arange(self._num_used, self.num_pages, dtype=np.int32)
        return np.concatenate((self._freed[: self._num_freed], never_used))
