"""PageCounts: how often each distinct prefix of whole pages is looked up, in bounded memory."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from testbed.workloads.prefix_hashes import Hashes

Counts = npt.NDArray[np.int32]

MERGE_AT = 1 << 20
"""Entries that wait before they are merged, or as many as there are already."""


class PageCounts:
    """Counts by prefix hash. Memory: 20 bytes for each distinct prefix, and as many again waiting.

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
        if self._num_waiting > max(MERGE_AT, len(self.hashes)):
            self.merge()

    def merge(self) -> None:
        """Bring `hashes` (in order), `lookups`, `stores` and `owners` up to date."""
        if not self._waiting:
            return
        parts, looked_up, owners = zip(*self._waiting, strict=True)
        sizes = np.array([len(part) for part in parts])
        place = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        is_lookup = place < np.repeat(np.array(looked_up), sizes)
        hashes = np.concatenate([self.hashes, *parts])
        lookups = np.concatenate([self.lookups, is_lookup.astype(np.int32)])
        stores = np.concatenate([self.stores, (~is_lookup).astype(np.int32)])
        owner = np.concatenate([self.owners, np.repeat(np.array(owners, dtype=np.int32), sizes)])
        self._waiting.clear()
        self._num_waiting = 0
        order = np.argsort(hashes)
        hashes = hashes[order]
        first = np.flatnonzero(np.append(True, hashes[1:] != hashes[:-1])[: len(hashes)])
        self.hashes = hashes[first]
        if len(first):
            self.lookups = np.add.reduceat(lookups[order], first)
            self.stores = np.add.reduceat(stores[order], first)
            self.owners = owner[order][first]

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
        missed = (self.lookups > 0) & (self.stores == 0)
        hits = np.bincount(self.owners, weights=self.lookups - missed)
        return hits.astype(np.int64)

    def copy(self) -> PageCounts:
        """The same counts, to go ways of their own."""
        self.merge()
        twin = PageCounts()
        twin.hashes, twin.lookups = self.hashes, self.lookups
        twin.stores, twin.owners = self.stores, self.owners
        return twin
