from __future__ import annotations

import json
from itertools import permutations, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.metrics.template_order import (
    MAX_EXHAUSTIVE,
    SegmentColumn,
    best_order,
    order_bound,
    rule_order,
)

CASES = json.loads((Path(__file__).parents[1] / "cases" / "template.json").read_text())
Rows = list[tuple[int, ...]]


def columns_of(rows: Rows, lengths: list[int]) -> list[SegmentColumn]:
    table = np.array(rows)
    return [
        SegmentColumn(str(j), table[:, j], np.full(len(rows), length))
        for j, length in enumerate(lengths)
    ]


def distinct(rows: Rows, lengths: list[int], order: tuple[int, ...]) -> int:
    """Straight from the definition: a set of tuples for each prefix of the order."""
    return sum(
        lengths[order[j]] * len({tuple(row[i] for i in order[: j + 1]) for row in rows})
        for j in range(len(order))
    )


tables = st.integers(1, 4).flatmap(
    lambda m: st.tuples(
        st.lists(st.tuples(*[st.integers(0, 3)] * m), min_size=1, max_size=12),
        st.lists(st.integers(0, 9), min_size=m, max_size=m),
    )
)


@pytest.mark.parametrize("case", CASES["instances"], ids=lambda case: case["id"])
def test_public_cases(case: dict[str, Any]) -> None:
    columns = columns_of(case["rows"], case["tokens"])
    for name, hits in case["hits_by_order"].items():
        assert order_bound(columns, [int(j) for j in name]).hit_tokens == hits
    best = best_order(columns)
    assert (best.bound.hit_tokens, best.total_tokens) == (case["best"], case["total_tokens"])
    assert "".join(map(str, best.order)) in case["best_orders"]


@given(tables)
def test_the_best_order_is_the_best_of_all_orders(table: tuple[Rows, list[int]]) -> None:
    rows, lengths = table
    columns = columns_of(rows, lengths)
    orders = list(permutations(range(len(lengths))))
    for order in orders:
        bound = order_bound(columns, order)
        assert bound.total_tokens - bound.hit_tokens == distinct(rows, lengths, order)
    best = best_order(columns)
    assert best.distinct_tokens == min(distinct(rows, lengths, order) for order in orders)
    assert best.distinct_tokens == distinct(rows, lengths, best.order)
    if distinct(rows, lengths, orders[0]) == best.distinct_tokens:
        assert best.order == orders[0]


@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=4),
    st.lists(st.integers(1, 20), min_size=4, max_size=4),
    st.integers(1, 2),
)
def test_the_rule_is_exact_where_all_combinations_occur(
    num_values: list[int], lengths: list[int], copies: int
) -> None:
    rows = list(product(*map(range, num_values))) * copies
    lengths = lengths[: len(num_values)]
    order = rule_order(lengths, num_values)
    least = min(distinct(rows, lengths, o) for o in permutations(range(len(lengths))))
    assert distinct(rows, lengths, order) == least


def test_the_rule_weighs_length_against_variety() -> None:
    """t k / (k - 1): 10 * 5/4 = 12.5 before 1 * 2 = 2; a constant before both."""
    assert rule_order([1, 10, 3], [2, 5, 1]) == (2, 1, 0)


def test_correlated_values_go_by_their_counts() -> None:
    """Tools that the tenant decides add no branch behind the tenant: 2 * 2 + 6 * 2 either way
    round, where independent values would cost 6 * 4."""
    rows = [(i % 2, i % 2, i) for i in range(8)]
    best = best_order(columns_of(rows, [2, 6, 3]))
    assert (best.method, best.distinct_tokens) == ("exhaustive", 2 * 2 + 6 * 2 + 3 * 8)


@given(tables, st.data())
def test_no_segment_crosses_a_boundary(table: tuple[Rows, list[int]], data: st.DataObject) -> None:
    rows, lengths = table
    cut = data.draw(st.integers(1, len(lengths)))
    boundaries = [cut] if cut < len(lengths) else []
    best = best_order(columns_of(rows, lengths), boundaries)
    allowed = [
        order for order in permutations(range(len(lengths))) if set(order[:cut]) == set(range(cut))
    ]
    assert best.order in allowed
    assert best.distinct_tokens == min(distinct(rows, lengths, order) for order in allowed)


@given(st.integers(0, 2**32))
def test_many_segments_are_ordered_greedily_and_never_worse_than_given(seed: int) -> None:
    draw = np.random.default_rng(seed)
    count = MAX_EXHAUSTIVE + 2
    values = draw.integers(0, draw.integers(2, 5, count), (30, count))
    lengths = draw.integers(1, 50, count).tolist()
    best = best_order(columns_of([tuple(row) for row in values.tolist()], lengths))
    given_bound = order_bound(columns_of([tuple(row) for row in values.tolist()], lengths))
    assert best.bound.hit_tokens >= given_bound.hit_tokens
    assert sorted(best.order) == list(range(count))


def test_pieces_share_their_beginnings() -> None:
    """Histories of one, two and two turns: 5 + 3 shared once, 4 and 2 behind them; 7 + 3 new."""
    history = SegmentColumn(
        "history",
        np.array([[0, -1], [0, 1], [0, 2]]),
        np.array([[5, 0], [5, 4], [5, 2]]),
    )
    assert order_bound([history]).hit_tokens == 10
    assert order_bound([history]).total_tokens == 21


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda c: best_order([]), "at least one"),
        (lambda c: order_bound(c, [0, 0]), r"order=\[0, 0\]"),
        (lambda c: best_order(c, [2]), r"boundaries=\[2\]"),
        (lambda c: best_order(c, [1, 1]), r"boundaries=\[1, 1\]"),
        (lambda c: SegmentColumn("x", np.zeros(2), np.zeros(3)), "'x'.*same shape"),
        (lambda c: order_bound([*c, SegmentColumn("x", np.zeros(1), np.zeros(1))]), "'x': 1"),
    ],
)
def test_bad_columns(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(columns_of([(0, 1), (1, 1)], [2, 3]))
