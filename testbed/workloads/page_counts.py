"""PageCounts: how often each distinct prefix of whole pages is looked up, in bounded memory."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from testbed.workloads.prefix_hashes import Hashes

Counts = npt.NDArray[np.int32]

MERGE_AT = 1 << 20
"""Entries that wait before they are merged, or an eighth of those that are there already."""


class PageCounts:
    """Counts by prefix hash. Memory: 20 bytes for each distinct prefix, 16 more while merging.

    A prefix that ends where its prompt ends is stored but not looked up: at least one token of a
    prompt is always computed. owner: whose prefix it is, a number.
    """

    def __init__(self) -> None:
        self.hashes: Hashes = np.empty(0, dtype=np.uint64)
        self.lookups: Counts = np.empty(0, dtype=np.int32)
        self.stores: Counts = np.empty(0, dtype=np.int32)
        self.owners: Counts = np.empty(0, dtype=np.int32)
        self._waiting: list[tuple[Hashes, int, int]] = []
        self._num_waiting = 0

    def add(self, hashes: Hashes, lookups: int, owner: int = 0) -> None:
        """Count one prompt's pages, of which the first `lookups` are looked up."""
        self._waiting.append((hashes, lookups, owner))
        self._num_waiting += len(hashes)
        if self._num_waiting > max(MERGE_AT, len(self.hashes) // 8):
            self.merge()

    def merge(self) -> None:
        """Bring `hashes` (in order), `lookups`, `stores` and `owners` up to date."""
        if not self._waiting:
            return
        hashes, lookups, stores, owners = _counted(self._waiting)
        self._waiting.clear()
        self._num_waiting = 0
        places = np.searchsorted(self.hashes, hashes)
        known = np.zeros(len(hashes), dtype=bool)
        inside = places < len(self.hashes)
        known[inside] = self.hashes[places[inside]] == hashes[inside]
        self.lookups[places[known]] += lookups[known]
        self.stores[places[known]] += stores[known]
        new = ~known
        # One column after the other, so that only one is there twice.
        where = places[new]
        self.hashes = np.insert(self.hashes, where, hashes[new])
        self.lookups = np.insert(self.lookups, where, lookups[new])
        self.stores = np.insert(self.stores, where, stores[new])
        self.owners = np.insert(self.owners, where, owners[new])

    def counts(self, hashes: Hashes) -> Counts:
        """How many prompts begin with each of the prefixes, all of which were added."""
        self.merge()
        # Looked for in order, neighbours lie in the same cache lines.
        order = np.argsort(hashes)
        places = np.empty(len(hashes), dtype=np.int64)
        places[order] = np.searchsorted(self.hashes, hashes[order])
        return self.lookups[places] + self.stores[places]

    def hit_pages(self) -> npt.NDArray[np.int64]:
        """Pages that can be found in a cache, for each owner: all lookups but a first one.

        What some prompt stores without looking it up can be found every time.
        """
        self.merge()
        hits = np.zeros(int(self.owners.max(initial=-1)) + 1, dtype=np.int64)
        for start in range(0, len(self.owners), MERGE_AT):
            lookups, stores, owners = (
                column[start : start + MERGE_AT]
                for column in (self.lookups, self.stores, self.owners)
            )
            np.add.at(hits, owners, lookups - ((lookups > 0) & (stores == 0)))
        return hits

    def copy(self) -> PageCounts:
        """The same counts, to go ways of their own."""
        self.merge()
        twin = PageCounts()
        twin.hashes, twin.lookups = self.hashes, self.lookups.copy()
        twin.stores, twin.owners = self.stores.copy(), self.owners
        return twin


def _counted(waiting: list[tuple[Hashes, int, int]]) -> tuple[Hashes, Counts, Counts, Counts]:
    """Distinct hashes of some prompts in order, their lookups, stores and owners."""
    parts, looked_up, owners = zip(*waiting, strict=True)
    sizes = np.array([len(part) for part in parts])
    place = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    is_lookup = place < np.repeat(np.array(looked_up), sizes)
    owner = np.repeat(np.array(owners, dtype=np.int32), sizes)
    hashes, first, of = np.unique(np.concatenate(parts), return_index=True, return_inverse=True)
    total = np.bincount(of, minlength=len(hashes))
    lookups = np.bincount(of[is_lookup], minlength=len(hashes))
    return (
        hashes,
        lookups.astype(np.int32),
        (total - lookups).astype(np.int32),
        owner[first],
    )
