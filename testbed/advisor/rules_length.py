"""Lint rules L8 and L9: shared beginnings that end within a page, or before a page is full."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from testbed.advisor.findings import Finding, Place
from testbed.workloads.formats.record import Record

MIN_WASTE = 0.03
"""Share of all prompt tokens that must be lost in half-shared pages: short prompts lose it."""


def find_half_pages(
    records: Sequence[Record], matches: npt.NDArray[np.int64], total: int, page_size: int
) -> list[tuple[Finding, int]]:
    """L8 with the tokens lost by requests that share a whole page. matches: int64[requests], the
    tokens that each prompt shares with an earlier one; total: tokens of all prompts."""
    waste = np.where(matches >= page_size, matches % page_size, 0)
    lost = int(waste.sum())
    if page_size == 1 or lost < MIN_WASTE * total:
        return []
    worst, other = np.argsort(-waste, kind="stable")[:2]

    def shown(i: np.int64) -> Place:
        text = f"{matches[i]:,} tokens shared, {waste[i]} of them in a page that is not"
        return Place(records[int(i)].line, "prompt", 0, text)

    finding = Finding(
        "L8",
        "end of the shared text",
        f"what prompts share ends on average {waste[waste > 0].mean():.1f} tokens into a page of "
        f"{page_size}, or within a token, and such a page is computed anew",
        f"pad or shorten the shared text to whole pages of {page_size} tokens and end it with a "
        "line break; or use smaller pages",
        int((waste > 0).sum()),
        (shown(worst), shown(other)),
    )
    return [(finding, lost)]


def find_short_prefixes(
    records: Sequence[Record], matches: npt.NDArray[np.int64], least: int
) -> list[tuple[Finding, int]]:
    """L9 with the tokens lost. least: tokens from which on a prefix is cached."""
    short = matches < least
    # The first request has nothing to share.
    if len(records) < 2 or np.median(matches[1:]) >= least:
        return []
    longest = np.argsort(-np.where(short, matches, -1), kind="stable")[:2]
    example = tuple(
        Place(records[int(i)].line, "prompt", 0, f"{matches[i]:,} tokens shared") for i in longest
    )
    finding = Finding(
        "L9",
        "start of the prompt",
        f"{short.mean():.0%} of the requests share fewer than {least:,} tokens with any earlier "
        "one, the fewest that are cached",
        "begin every prompt with the same instructions, and put more of what is common there",
        int(short.sum()),
        (example[0], example[-1]),
    )
    return [(finding, int(matches[short].sum()))]
