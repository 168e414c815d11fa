"""Duplicated prefix tokens and imbalance, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.core.records import RunRecord
from testbed.core.request import Request
from testbed.metrics.cluster import duplicated_prefix_tokens, load_imbalance
from testbed.metrics.prompt_paths import prompt_paths
from tests.metrics.conftest import build_record


def request(number: int, prompt: list[int], namespace: str = "") -> Request:
    tokens = np.array(prompt, dtype=np.int32)
    return Request(number, tokens, tokens[:1], namespace=namespace)


def served(*replicas: int, page_size: int = 1, fleet: int = 3) -> RunRecord:
    """Request i was admitted on the i-th replica given; -1: it was refused."""
    rows = [
        {"request": number, "replica": max(replica, 0), "admitted_step": -1 if replica < 0 else 1}
        for number, replica in enumerate(replicas)
    ]
    record = build_record(rows, [], page_size=page_size)
    return record._replace(counters={**record.counters, "replicas": fleet})


PROMPTS = [
    request(0, [1, 2, 3, 4]),
    request(1, [1, 2, 3, 5]),
    request(2, [1, 2, 9]),
    request(3, [1, 2, 3, 4]),
]


@pytest.mark.parametrize(
    ("replicas", "expected"),
    [
        # Distinct: 1, 12, 123, 1234, 1235, 129.
        ((0, 0, 0, 0), 0),
        ((0, 1, 0, 0), 3),  # 123 twice
        ((0, 1, 2, 0), 3 + 2),  # and 12 once more
        ((0, 1, 2, 1), 4 + 2),  # 1234 twice, 12 once more
        ((0, -1, -1, 2), 4),
    ],
)
def test_duplicates_by_hand(replicas: tuple[int, ...], expected: int) -> None:
    assert duplicated_prefix_tokens(served(*replicas), PROMPTS) == expected


def test_only_whole_pages_and_the_same_namespace_are_duplicates() -> None:
    # 12 and 123x are whole pages of 2: of the first two prompts 12 is common.
    assert duplicated_prefix_tokens(served(0, 1, -1, -1, page_size=2), PROMPTS) == 2
    apart = [request(0, [1, 2]), request(1, [1, 2], "n"), request(2, [1, 2])]
    assert duplicated_prefix_tokens(served(0, 1, 0), apart) == 0
    assert duplicated_prefix_tokens(served(0, 1, 1), apart) == 2


def test_a_served_request_must_be_given() -> None:
    with pytest.raises(ValueError, match="1 that were served are not among them"):
        duplicated_prefix_tokens(served(0, 0, 0, 0), PROMPTS[1:])


@given(st.lists(st.tuples(st.lists(st.integers(0, 1), min_size=1, max_size=5), st.integers(0, 2))))
def test_duplicates_are_the_replicas_that_hold_a_prefix_beyond_the_first(
    moves: list[tuple[list[int], int]],
) -> None:
    requests = [request(number, prompt) for number, (prompt, _) in enumerate(moves)]
    holders: dict[tuple[int, ...], set[int]] = {}
    for prompt, replica in moves:
        for depth in range(1, len(prompt) + 1):
            holders.setdefault(tuple(prompt[:depth]), set()).add(replica)
    expected = sum(len(replicas) - 1 for replicas in holders.values())
    record = served(*(replica for _, replica in moves))
    assert duplicated_prefix_tokens(record, requests) == expected
    assert sum(prompt_paths(requests, 1, min_computed_tokens=0).pages) == len(holders)


def test_imbalance_is_the_busiest_over_the_mean() -> None:
    steps = [
        {"replica": 0, "start_s": 0.0, "end_s": 3.0},
        {"replica": 1, "start_s": 1.0, "end_s": 2.0},
        {"replica": 0, "start_s": 5.0, "end_s": 6.0},
    ]
    record = build_record([], steps)
    for fleet, expected in ((2, 4 / 2.5), (4, 4 / 1.25)):
        grown = record._replace(counters={**record.counters, "replicas": fleet})
        assert load_imbalance(grown) == pytest.approx(expected)
    assert math.isnan(load_imbalance(build_record([], [])))
