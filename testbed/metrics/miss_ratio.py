"""Hit rate against cache size under LRU, at every size at once, from the stack distances.

Mattson et al. 1970, on a tree of prefixes: order all pages by their last use, within one request
those nearer to the root first. A serial LRU cache of C pages holds the first C of them, whatever C
is, since a page never outlives its children. So one walk over the requests gives every size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from testbed.metrics.prompt_paths import PromptPaths

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class MissRatioCurve:
    """Hits of serial LRU service, page by page, for every capacity from `min_capacity` on.

    page_size: tokens. min_capacity: pages of the longest request; a smaller cache cannot serve it.
    working_set: pages that fit everything; a larger cache hits no more. total_tokens: prompts.
    starts, ends: int64, ascending: capacities between which the hits of a run of pages grow by one
    page a page. partial, deficits: capacities from which a partial last page is hit, ascending, and
    the tokens it lacks, summed up.
    """

    page_size: int
    min_capacity: int
    working_set: int
    total_tokens: int
    starts: Ints
    ends: Ints
    partial: Ints
    deficits: Ints

    def hit_tokens(self, capacity: int) -> int:
        """Hit tokens with `capacity` pages; ValueError below min_capacity."""
        if capacity < self.min_capacity:
            raise ValueError(
                f"capacity={capacity}: at least {self.min_capacity} pages are needed, "
                "for the longest request"
            )
        pages = _ramp(self.starts, capacity) - _ramp(self.ends, capacity)
        hit = int(np.searchsorted(self.partial, capacity, side="right"))
        return pages * self.page_size - (int(self.deficits[hit - 1]) if hit else 0)

    def hit_rate(self, capacity: int) -> float:
        """Hit tokens over prompt tokens, with `capacity` pages; ValueError below min_capacity."""
        hits = self.hit_tokens(capacity)
        return hits / self.total_tokens if self.total_tokens else 0.0


def lru_curve(paths: PromptPaths, order: Sequence[int] | None = None) -> MissRatioCurve:
    """The curve for requests served one at a time in `order`: positions in `paths`, None for all.

    A request uses all that it leaves (`stored`) and hits what it may match (`lookup`). Exact where
    whole pages are all that a request ever needs: pages of one token or whole blocks, and a match
    that may cover a whole prompt (min_computed_tokens=0). A last page that is partly filled, or
    computed again although it is cached, takes up room while its request is served, which is not
    counted here. O((nodes of all paths + requests) * log requests).
    """
    served = range(len(paths.stored)) if order is None else order
    parent, pages = paths.parent, paths.pages
    last_use = [-1] * len(parent)
    # By request, the pages whose last use it is.
    recent = _PrefixSums(len(served))
    runs: list[tuple[int, int]] = []
    partial: list[tuple[int, int]] = []
    longest = total_tokens = 0
    for now, index in enumerate(served):
        path, looked_up = _path(paths, index)
        depth = end = 0
        for node in path:
            stamp = last_use[node]
            if stamp >= 0:
                # Pages of one last use lie together, those nearer to the root first.
                start = max(end, recent.total - recent.up_to(stamp))
                end = start + pages[node]
                if depth < looked_up:
                    runs.append((start, end))
                    lacks = looked_up * paths.page_size - paths.prompt_tokens[index]
                    if depth + pages[node] == looked_up and lacks > 0:
                        partial.append((end, lacks))
            depth += pages[node]
        for node in path:
            if last_use[node] >= 0:
                recent.add(last_use[node], -pages[node])
            last_use[node] = now
        recent.add(now, depth)
        longest = max(longest, depth)
        total_tokens += paths.prompt_tokens[index]
    starts, ends = np.array(runs, dtype=np.int64).reshape(-1, 2).T
    at, lacks_of = np.array(sorted(partial), dtype=np.int64).reshape(-1, 2).T
    return MissRatioCurve(
        page_size=paths.page_size,
        min_capacity=longest,
        working_set=int(ends.max(initial=0)),
        total_tokens=total_tokens,
        starts=np.sort(starts),
        ends=np.sort(ends),
        partial=at,
        deficits=np.cumsum(lacks_of),
    )


def _path(paths: PromptPaths, index: int) -> tuple[list[int], int]:
    """The nodes that a request leaves, from the root on, and how many of their pages may be hit."""
    path = []
    looked_up = 0
    may_hit = False
    node = paths.stored[index]
    while paths.parent[node] >= 0:
        may_hit = may_hit or node == paths.lookup[index]
        looked_up += paths.pages[node] if may_hit else 0
        path.append(node)
        node = paths.parent[node]
    return path[::-1], looked_up


def _ramp(starts: Ints, capacity: int) -> int:
    """Sum of capacity - start over all starts below capacity."""
    below = starts[: int(np.searchsorted(starts, capacity))]
    return capacity * len(below) - int(below.sum())


class _PrefixSums:
    """A Fenwick tree: numbers that change, and the sum of the first few of them."""

    def __init__(self, size: int) -> None:
        self._sums = [0] * (size + 1)
        self.total = 0

    def add(self, place: int, amount: int) -> None:
        self.total += amount
        place += 1
        while place < len(self._sums):
            self._sums[place] += amount
            place += place & -place

    def up_to(self, place: int) -> int:
        """The sum of numbers 0 to place."""
        total = 0
        place += 1
        while place:
            total += self._sums[place]
            place &= place - 1
        return total
