"""Paged attention against a plain float64 computation over each row's own tokens."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.engine.attention import TorchAttention
from testbed.engine.attention_backend import StepRows
from testbed.engine.attention_layout import SharingPays
from testbed.engine.kv_pool import KVPool
from testbed.engine.shared_prefix import SharedSegment, shared_segments, similar_rows
from tests.engine.building import Models


class Case(NamedTuple):
    seed: int
    page_size: int
    decodes: list[int]
    """Tokens each decode row has behind the shared pages, its new one included."""
    prefills: list[tuple[int, int]]
    """(tokens cached behind the shared pages, new tokens)."""
    shared_pages: list[int]
    """Pages of one common run that each row starts with."""
    window: int | None
    share: bool
    fused: bool
    in_place: bool
    ordered: bool
    """Whether all pages lie in the order in which they are read, which needs no copies."""


@st.composite
def cases(draw: st.DrawFn) -> Case:
    decodes = draw(st.lists(st.integers(1, 40), max_size=5))
    # Equal counts are batched, so they have to be likely.
    new_tokens = st.integers(1, 30) | st.sampled_from([1, 7])
    prefills = draw(
        st.lists(
            st.tuples(st.integers(0, 30), new_tokens), min_size=0 if decodes else 1, max_size=4
        )
    )
    return Case(
        draw(st.integers(0, 10**6)),
        draw(st.sampled_from([1, 3, 16])),
        decodes,
        prefills,
        [draw(st.integers(0, 4)) for _ in decodes + prefills],
        draw(st.none() | st.integers(1, 50)),
        draw(st.booleans()),
        draw(st.booleans()),
        draw(st.booleans()),
        draw(st.booleans()),
    )


@settings(max_examples=100)
@given(case=cases(), family=st.sampled_from(["tiny-llama", "tiny-smollm2"]))
def test_every_row_attends_to_exactly_its_own_past(models: Models, case: Case, family: str) -> None:
    model = models[family]
    size = case.page_size
    rng = np.random.default_rng(case.seed)
    common_pages = max(case.shared_pages, default=0)
    past_alone = [n - 1 for n in case.decodes] + [start for start, _ in case.prefills]
    starts = [p * size + n for p, n in zip(case.shared_pages, past_alone, strict=True)]
    counts = [1] * len(case.decodes) + [count for _, count in case.prefills]
    needed = common_pages + sum(
        -(-(start + count) // size) for start, count in zip(starts, counts, strict=True)
    )
    ids = (np.arange if case.ordered else rng.permutation)(needed + 3).astype(np.int32)
    common, ids = ids[:common_pages], ids[common_pages:]
    tables = []
    for start, count, pages in zip(starts, counts, case.shared_pages, strict=True):
        own = -(-(start + count) // size) - pages
        tables.append(np.concatenate([common[:pages], ids[:own]]))
        ids = ids[own:]
    pool = KVPool(model, needed + 3, size)
    pool.poison()
    generator = torch.Generator().manual_seed(case.seed)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    kv = (model.num_kv_heads, model.head_dim)
    past: list[tuple[torch.Tensor, torch.Tensor]] = []
    shared_kv = random(common_pages * size, *kv), random(common_pages * size, *kv)
    for table, start, pages in zip(tables, starts, case.shared_pages, strict=True):
        keys, values = random(start, *kv), random(start, *kv)
        keys[: pages * size], values[: pages * size] = (t[: pages * size] for t in shared_kv)
        past.append((keys, values))
        for position in range(start):
            page, offset = int(table[position // size]), position % size
            pool.keys[1][page, offset] = keys[position]
            pool.values[1][page, offset] = values[position]
    total = sum(counts)
    query = random(total, model.num_heads, model.head_dim)
    key, value = random(total, *kv), random(total, *kv)
    backend = TorchAttention(pool, share_prefixes=case.share, sharing=SharingPays(1, 1))
    backend.fused = case.fused
    backend.reads_in_place &= case.in_place
    rows = StepRows(len(case.decodes), np.array(starts), np.array(counts), tables)
    ours = backend.plan(rows).attend(1, query, key, value, 0.3, case.window)

    first = 0
    for (old_keys, old_values), start, count in zip(past, starts, counts, strict=True):
        last = first + count
        expected = plain_attention(
            query[first:last],
            torch.cat([old_keys, key[first:last]]),
            torch.cat([old_values, value[first:last]]),
            start,
            case.window,
        )
        assert torch.allclose(ours[first:last].double(), expected, atol=2e-6, rtol=1e-5)
        first = last


def plain_attention(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, start: int, window: int | None
) -> torch.Tensor:
    group = query.shape[1] // keys.shape[1]
    out = torch.empty(query.shape, dtype=torch.float64)
    for i in range(query.shape[0]):
        end = start + i + 1
        begin = 0 if window is None else max(0, end - window)
        for head in range(query.shape[1]):
            k = keys[begin:end, head // group].double()
            v = values[begin:end, head // group].double()
            out[i, head] = torch.softmax(k @ query[i, head].double() * 0.3, dim=0) @ v
    return out


def test_a_shared_run_is_one_segment_and_its_branches_are_others() -> None:
    tables = np.array(
        [
            [1, 2, 3, 4, 10, 99],
            [1, 2, 3, 4, 11, 12],
            [1, 2, 7, 13, 99, 99],
            [1, 2, 7, 14, 15, 99],
            [20, 21, 99, 99, 99, 99],
        ],
        dtype=np.int32,
    )
    lengths = np.array([5, 6, 4, 5, 2])
    segments, alone = shared_segments(tables, lengths, 1)
    found = {(s.first, s.last, tuple(s.rows.tolist())) for s in segments}
    assert found == {(0, 2, (0, 1, 2, 3)), (2, 4, (0, 1)), (2, 3, (2, 3))}
    assert alone.tolist() == [4, 4, 3, 3, 0]


def test_a_run_too_short_to_pay_counts_with_the_runs_below_it() -> None:
    tables = np.array([[1, 2, 3, 9], [1, 2, 3, 8], [1, 5, 6, 7]], dtype=np.int32)
    lengths = np.array([4, 4, 4])
    # Page 1 spares two reads; pages 1 to 3 of rows 0 and 1 spare three.
    segments, alone = shared_segments(tables, lengths, 3)
    [(first, last, rows)] = segments
    assert isinstance(segments[0], SharedSegment)
    assert (first, last, rows.tolist()) == (0, 3, [0, 1])
    assert alone.tolist() == [3, 3, 0]
    assert shared_segments(tables, lengths, 4)[0] == []


def test_rows_that_read_apart_as_fast_spare_nothing() -> None:
    tables = np.array([[1, 2, 3], [1, 2, 4], [1, 2, 5], [1, 6, 7]], dtype=np.int32)
    lengths = np.array([3, 3, 3, 3])
    # Beyond two rows page 1 spares two reads; pages 1 and 2 of three rows spare as many.
    segments, _ = shared_segments(tables, lengths, 2, break_even_rows=2)
    assert [(s.first, s.last, len(s.rows)) for s in segments] == [(0, 1, 4)]
    segments, _ = shared_segments(tables[:3], lengths[:3], 2, break_even_rows=2)
    assert [(s.first, s.last, len(s.rows)) for s in segments] == [(0, 2, 3)]
    assert shared_segments(tables[:2], lengths[:2], 0, break_even_rows=2)[0] == []


@given(
    lengths=st.lists(st.integers(1, 400), min_size=1, max_size=40),
    page_size=st.sampled_from([1, 16, 64]),
)
def test_groups_of_similar_rows_hold_every_row_and_little_padding(
    lengths: list[int], page_size: int
) -> None:
    groups = similar_rows(np.array(lengths), page_size, 65_536)
    assert sorted(np.concatenate(groups).tolist()) == list(range(len(lengths)))
    for group in groups:
        sizes = [lengths[row] for row in group.tolist()]
        longest, shortest = max(sizes), min(sizes)
        assert shortest >= 0.75 * longest or (longest - shortest) * page_size <= 32


def test_pages_in_order_are_read_where_they_lie(models: Models) -> None:
    pool = KVPool(models["tiny-llama"], 8, 4)
    keys, values = TorchAttention(pool).read(1, slice(2, 5))
    assert keys.shape == values.shape == (12, 2, 16)
    assert keys.data_ptr() == pool.keys[1][2].data_ptr()
    assert values.data_ptr() == pool.values[1][2].data_ptr()


def test_gathering_reuses_its_memory(models: Models) -> None:
    pool = KVPool(models["tiny-llama"], 8, 4)
    backend = TorchAttention(pool)
    first, _ = backend.gather(0, torch.arange(8))
    second, _ = backend.gather(1, torch.arange(3))
    assert first.shape == (32, 2, 16)
    assert second.shape == (12, 2, 16)
    assert first.data_ptr() == second.data_ptr()


@pytest.mark.parametrize("page_size", [1, 16])
def test_rows_and_tables_may_be_of_length_one(models: Models, page_size: int) -> None:
    model = models["tiny-llama"]
    pool = KVPool(model, 3, page_size)
    pool.poison()
    value = torch.randn(1, model.num_kv_heads, model.head_dim)
    query = torch.randn(1, model.num_heads, model.head_dim)
    rows = StepRows(1, np.array([0]), np.array([1]), [np.array([2], dtype=np.int32)])
    ours = TorchAttention(pool).plan(rows).attend(0, query, value.clone(), value, 1.0, None)
    # One token attends to itself alone.
    assert torch.allclose(ours[0], value[0].repeat_interleave(2, dim=0), atol=1e-6)
