"""Which rows read the same leading pages, found in their page tables, and which read as many.

A page id stands twice in a step's page tables only if the cache shares it, so equal columns of the
tables are the tree's common nodes, whatever kind of cache keeps them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]


class SharedSegment(NamedTuple):
    """Pages first..last - 1 of the tables of `rows` (ascending, at least two) are the same."""

    first: int
    last: int
    rows: Indices


def shared_segments(
    tables: npt.NDArray[np.int32],
    lengths: Indices,
    min_saved_pages: int,
    break_even_rows: int = 1,
) -> tuple[list[SharedSegment], Indices]:
    """The segments worth reading once, and for each row the first page that it reads alone.

    tables: [rows, columns], row i filled up to lengths[i]. A segment of p pages shared by m rows is
    worth it if (m - break_even_rows) * p >= min_saved_pages; a shorter one counts with the longer
    ones below it. break_even_rows: for how many rows a page is read apart as fast as jointly.
    The segments of one row are adjacent and start at page 0.
    """
    segments: list[SharedSegment] = []
    alone = np.zeros(len(tables), dtype=np.int64)
    open_groups = [(np.arange(len(tables)), 0, 0)]
    while open_groups:
        rows, first, depth = open_groups.pop()
        rows = rows[lengths[rows] > depth]
        if len(rows) < 2:
            continue
        longest = int(lengths[rows].max())
        _, group_of = np.unique(tables[rows, depth], return_inverse=True)
        sizes = np.bincount(group_of)
        # Of the others not even rows that were equal to the end could be worth a segment.
        spared = (sizes - break_even_rows) * (longest - first)
        worth = (sizes > break_even_rows) & (spared >= min_saved_pages)
        for group in np.flatnonzero(worth):
            members = rows[group_of == group]
            block = tables[members, depth : lengths[members].min()]
            differs = (block != block[0]).any(axis=0)
            last = depth + (int(differs.argmax()) if differs.any() else block.shape[1])
            if (len(members) - break_even_rows) * (last - first) >= min_saved_pages:
                segments.append(SharedSegment(first, last, members))
                alone[members] = last
                open_groups.append((members, last, last))
            else:
                open_groups.append((members, first, last))
    return segments, alone


def similar_rows(lengths: Indices, page_size: int, max_tokens: int) -> list[Indices]:
    """All rows in groups of similar length in pages, so that padding is at most a third of a group.

    A few pages of padding are cheaper than another group, so a group also takes rows that fall
    short of its longest by no more than 32 tokens. A group of several rows has at most max_tokens.
    """
    order = np.argsort(-lengths, kind="stable")
    groups: list[Indices] = []
    first = 0
    while first < len(order):
        longest = int(lengths[order[first]])
        shortest = min(-(-3 * longest // 4), longest - 32 // page_size)
        room = max(1, max_tokens // (longest * page_size))
        fits = lengths[order[first : first + room]] >= shortest
        count = len(fits) if fits.all() else int(fits.argmin())
        groups.append(order[first : first + count])
        first += count
    return groups
