"""What a prefix cache could have reached: the sharing bound and the clairvoyant (Belady) bound."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from testbed.core.records import RunRecord
from testbed.core.request import Request
from testbed.metrics.prompt_paths import PromptPaths, prompt_paths


@dataclass(frozen=True)
class Bound:
    """hit_tokens of the prompts' total_tokens could be found in the cache."""

    hit_tokens: int
    total_tokens: int

    @property
    def rate(self) -> float:
        """Hit tokens over total tokens; 0 without any token."""
        return self.hit_tokens / self.total_tokens if self.total_tokens else 0.0


@dataclass(frozen=True)
class ClairvoyantBound(Bound):
    """request_hit_tokens: int64[served], in served order."""

    hit_pages: int
    evicted_pages: int
    request_hit_tokens: npt.NDArray[np.int64]


class RunBounds(NamedTuple):
    """The two bounds of one run, over the requests that it served."""

    sharing: Bound
    clairvoyant: Bound


def sharing_bound(paths: PromptPaths) -> Bound:
    """The most that any serving order and any capacity can reach.

    Every page is missed once, unless some request leaves it in the cache without looking it up (its
    output, or the page that holds its last token). With pages of one token and
    min_computed_tokens=0 this is the prompts' tokens less their distinct prefixes. O(nodes). The
    last page of a block trace counts as full.
    """
    depth = _pages_to_root(paths)
    lookups = [0] * len(depth)
    stores = [0] * len(depth)
    for lookup, stored in zip(paths.lookup, paths.stored, strict=True):
        lookups[lookup] += 1
        stores[stored] += 1
        stores[lookup] -= 1
    hit_pages = 0
    # Children first, so that a node's counts are those of its whole subtree when it is reached.
    for node in reversed(range(len(depth))):
        parent = paths.parent[node]
        if parent < 0:
            continue
        lookups[parent] += lookups[node]
        stores[parent] += stores[node]
        missed = 1 if stores[node] == 0 and lookups[node] else 0
        hit_pages += paths.pages[node] * (lookups[node] - missed)
    return Bound(hit_pages * paths.page_size, sum(paths.prompt_tokens))


def clairvoyant_bound(
    paths: PromptPaths,
    capacity: int | None,
    order: Sequence[int] | None = None,
    *,
    may_bypass: bool = False,
) -> ClairvoyantBound:
    """The most that any eviction rule can reach when requests are served one at a time in `order`.

    Belady's rule: a request's own pages stay while it is served; among the others the page leaves
    whose next lookup lies furthest, the deepest first. A page that some request stores again before
    its next lookup need not be kept. capacity: pages; None for no limit. order: positions in
    `paths`, each at most once; None for all, as they are. may_bypass: a request's own pages may
    leave as soon as it is served, before others do, as if it had been served outside of the cache.

    It bounds serial service. Requests that run together occupy the pool at the same time, which it
    ignores, so a real run has less to keep. O(path nodes * log(path nodes)); raises ValueError if a
    request alone does not fit.
    """
    served = range(len(paths.stored)) if order is None else order
    if capacity is None:
        hits, evicted = _first_use_hits(paths, served), 0
    else:
        hits, evicted = _belady_hits(paths, served, capacity, may_bypass)
    prompt_tokens = np.array([paths.prompt_tokens[i] for i in served], dtype=np.int64)
    # A block trace's last block may be partial: it weighs what the prompt really holds.
    hit_tokens = np.minimum(hits * paths.page_size, prompt_tokens)
    return ClairvoyantBound(
        hit_tokens=int(hit_tokens.sum()),
        total_tokens=int(prompt_tokens.sum()),
        hit_pages=int(hits.sum()),
        evicted_pages=evicted,
        request_hit_tokens=hit_tokens,
    )


def run_bounds(
    record: RunRecord,
    requests: Iterable[Request],
    *,
    min_computed_tokens: int = 1,
    cache_outputs: bool = True,
) -> RunBounds:
    """Both bounds for the requests that a run served, at its page size.

    The sharing bound treats all replicas as one cache. The clairvoyant bound is the sum over
    replicas, each with its own pool and the order in which it admitted; requests of one step count
    in order of their first token, then of arrival. It bounds runs with reserve=full and
    insert_at=commit: serial service holds every output in full, so that overcommitted memory, and
    sharing within a step, can hit a little more. min_computed_tokens, cache_outputs: as the run
    was configured. Raises ValueError if a served request is missing from `requests`.
    """
    columns = record.requests
    by_admission = np.lexsort(
        (
            columns["request"],
            columns["arrival_s"],
            columns["first_token_s"],
            columns["admitted_s"],
            columns["replica"],
        )
    )
    admitted = by_admission[columns["admitted_step"][by_admission] >= 0]
    served_ids = columns["request"][admitted].tolist()
    wanted = set(served_ids)
    position: dict[int, int] = {}

    def served(stream: Iterable[Request]) -> Iterable[Request]:
        for request in stream:
            if request.id in wanted:
                position[request.id] = len(position)
                yield request

    page_size = record.counters["page_size"]
    paths = prompt_paths(
        served(requests),
        page_size,
        min_computed_tokens=min_computed_tokens,
        cache_outputs=cache_outputs,
    )
    missing = [i for i in served_ids if i not in position]
    if missing:
        raise ValueError(f"requests: request {missing[0]} was served but is not among them")
    replicas = columns["replica"][admitted]
    order = np.array([position[i] for i in served_ids], dtype=np.int64)
    parts = [
        clairvoyant_bound(paths, record.counters["num_pages"], order[replicas == r].tolist())
        for r in np.unique(replicas)
    ]
    total = Bound(sum(b.hit_tokens for b in parts), sum(b.total_tokens for b in parts))
    return RunBounds(sharing_bound(paths), total)


def _first_use_hits(paths: PromptPaths, order: Sequence[int]) -> npt.NDArray[np.int64]:
    """Hit pages of each served request when nothing is ever evicted."""
    parent, pages = paths.parent, paths.pages
    resident = [False] * len(parent)
    above = _pages_to_root(paths)
    hits = np.zeros(len(order), dtype=np.int64)
    for place, index in enumerate(order):
        node = paths.lookup[index]
        while parent[node] >= 0 and not resident[node]:
            node = parent[node]
        hits[place] = above[node]
        node = paths.stored[index]
        while pages[node] and not resident[node]:
            resident[node] = True
            node = parent[node]
    return hits


def _belady_hits(
    paths: PromptPaths, order: Sequence[int], capacity: int, may_bypass: bool
) -> tuple[npt.NDArray[np.int64], int]:
    """Hit pages of each served request, and all evicted pages, under Belady's rule."""
    pages = paths.pages
    never = len(order)
    next_lookups = _next_lookups(paths, order)
    resident = [0] * len(pages)
    next_lookup = [never] * len(pages)
    depth = _pages_to_root(paths)
    # Entries (-next lookup, -depth, node); one is stale once the node's next lookup has moved on.
    victims: list[tuple[int, int, int]] = []
    size = evicted = 0
    hits = np.zeros(never, dtype=np.int64)

    def restamp(path: list[int]) -> None:
        for node in path:
            next_lookup[node] = next_lookups.pop()
            heappush(victims, (-next_lookup[node], -depth[node], node))

    for place, index in enumerate(order):
        if depth[paths.stored[index]] > capacity:
            raise ValueError(
                f"order: request at place {place} needs {depth[paths.stored[index]]} pages but "
                f"capacity is {capacity}; leave out requests that can never fit"
            )
        path = _path(paths, paths.stored[index])
        looked_up = depth[paths.lookup[index]]
        found = 0
        for node in path:
            if depth[node] <= looked_up:
                found += resident[node]
            size += pages[node] - resident[node]
            resident[node] = pages[node]
            next_lookup[node] = -1
        hits[place] = found
        if may_bypass:
            restamp(path)
        while size > capacity:
            negative_next, _, node = victims[0]
            if next_lookup[node] != -negative_next or not resident[node]:
                heappop(victims)
                continue
            taken = min(resident[node], size - capacity)
            resident[node] -= taken
            size -= taken
            evicted += taken
        if not may_bypass:
            restamp(path)
    return hits, evicted


def _next_lookups(paths: PromptPaths, order: Sequence[int]) -> list[int]:
    """Place of the next lookup for every node of every path, to be popped in served order.

    len(order) stands for never, and for a page that is stored again before it is looked up.
    """
    upcoming = [len(order)] * len(paths.parent)
    depth = _pages_to_root(paths)
    flat: list[int] = []
    for place in range(len(order) - 1, -1, -1):
        index = order[place]
        path = _path(paths, paths.stored[index])
        looked_up = depth[paths.lookup[index]]
        for node in reversed(path):
            flat.append(upcoming[node])
            upcoming[node] = place if depth[node] <= looked_up else len(order)
    return flat


def _path(paths: PromptPaths, node: int) -> list[int]:
    """The nodes with pages from `node` up to its root, deepest first."""
    parent = paths.parent
    path = []
    while parent[node] >= 0:
        path.append(node)
        node = parent[node]
    return path


def _pages_to_root(paths: PromptPaths) -> list[int]:
    """Depth in pages at the end of each node."""
    totals: list[int] = []
    for parent, pages in zip(paths.parent, paths.pages, strict=True):
        totals.append(pages + (totals[parent] if parent >= 0 else 0))
    return totals
