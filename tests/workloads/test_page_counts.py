from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.workloads import page_counts
from testbed.workloads.page_counts import PageCounts

PROMPTS = st.lists(
    st.tuples(
        st.lists(st.integers(0, 9), max_size=6, unique=True), st.integers(0, 6), st.integers(0, 2)
    ),
    max_size=12,
)


@settings(deadline=None)
@given(PROMPTS, st.integers(0, 5))
def test_counts_are_those_of_a_dictionary(prompts: Any, merge_at: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page_counts, "MERGE_AT", merge_at or 1)
        counts = PageCounts()
        lookups: dict[int, int] = {}
        stores: dict[int, int] = {}
        for pages, looked_up, owner in prompts:
            # As a client's pages are told from another's, so a page has one owner.
            hashes = [10 * owner + page for page in pages]
            counts.add(np.array(hashes, dtype=np.uint64), looked_up, owner)
            for place, value in enumerate(hashes):
                kind = lookups if place < looked_up else stores
                kind[value] = kind.get(value, 0) + 1
        known = sorted({*lookups, *stores})
        total = [lookups.get(h, 0) + stores.get(h, 0) for h in known]
        assert counts.counts(np.array(known, dtype=np.uint64)).tolist() == total
        assert counts.hashes.tolist() == known
        hits = counts.hit_pages().tolist()
        for owner in range(len(hits)):
            own = [h for h in known if h // 10 == owner]
            first = sum(1 for h in own if lookups.get(h) and not stores.get(h))
            assert hits[owner] == sum(lookups.get(h, 0) for h in own) - first


def test_a_copy_goes_its_own_way() -> None:
    counts = PageCounts()
    page = np.array([5], dtype=np.uint64)
    counts.add(page, 1)
    twin = counts.copy()
    twin.add(page, 1)
    assert (twin.counts(page).tolist(), counts.counts(page).tolist()) == ([2], [1])


def test_memory_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_counts, "MERGE_AT", 1 << 10)
    pages = np.random.default_rng(0).integers(0, 2**63, 400_000).astype(np.uint64)
    tracemalloc.start()
    counts = PageCounts()
    for part in np.split(pages.copy(), 400):
        counts.add(part.copy(), len(part))
    counts.hit_pages()
    kept, peak = (value / len(pages) for value in tracemalloc.get_traced_memory())
    tracemalloc.stop()
    # The copy that the parts are cut from takes 8 more.
    assert kept < 8 + 21 and peak < 8 + 36
