from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.core.request import Request
from testbed.metrics.bounds import sharing_bound
from testbed.metrics.prompt_paths import prompt_paths
from testbed.workloads.description import Description, SharedPrefix, describe
from testbed.workloads.formats import PROMPT, Record, RecordSegment
from testbed.workloads.tokenize import load_tokenizer, tokenize


def record(line: int, prompt: list[int], **more: Any) -> Record:
    return Record(line, (RecordSegment(PROMPT, np.array(prompt, dtype=np.int32)),), **more)


def described(records: list[Record], page_size: int = 2, **more: Any) -> Description:
    return describe(tokenize(records, load_tokenizer(None)), page_size, **more)


def test_a_log_by_hand() -> None:
    found = described(
        [
            record(1, [1, 2, 3, 4, 5], client="a", session="x", arrival=10.0, output_length=4),
            record(2, [1, 2, 3, 4, 9], client="b", session="x", turn=1, arrival=14.0),
            record(3, [1, 2, 8], client="a", session="y", arrival=12.0, output_length=2),
        ]
    )
    assert (found.requests, found.from_text) == (3, 0)
    assert (found.prompts.total, found.prompts.p50, found.prompts.most) == (13, 5, 5)
    assert found.outputs is not None and (found.outputs.total, found.outputs_known) == (6, 2)
    assert (found.turns.most, found.sessions) == (1, 2)
    arrivals = found.arrivals
    assert arrivals is not None
    assert (arrivals.span_s, arrivals.rate_per_s, arrivals.cv) == (4.0, 0.5, 0.0)
    assert (arrivals.out_of_order, found.arrivals_known) == (1, 3)
    # A request in the busiest of a hundred parts; there are three in all.
    assert arrivals.peak_to_mean == pytest.approx(100 / 3)
    sharing = found.sharing
    assert sharing is not None
    # Page (1, 2) is found twice, (3, 4) once: 6 of 13 tokens.
    assert sharing.bound == 6 / 13 and sharing.distinct_pages == 2
    assert (sharing.depth.total, sharing.depth.most, sharing.sampled) == (4 + 4 + 2, 4, 3)
    # Each saves four tokens; the third request holds no whole page more.
    assert sharing.most_shared == [SharedPrefix(4, 2, 1), SharedPrefix(2, 3, 3)]
    # Alone, a finds (1, 2) once in 8 tokens; b finds nothing.
    assert [(c.name, c.requests, c.prompt_tokens, c.bound) for c in found.clients] == [
        ("a", 2, 8, 2 / 8),
        ("b", 1, 5, 0.0),
    ]
    assert found.client_count == 2


def test_most_shared_prefixes_end_where_most_part_ways() -> None:
    common = [7, 7, 7, 7]
    found = described([record(i, [*common, i, i, i]) for i in range(1, 9)] + [record(9, [3])])
    assert found.sharing is not None
    assert found.sharing.most_shared == [SharedPrefix(4, 8, 1)]


def test_lengths_alone_say_nothing_of_sharing() -> None:
    found = described([Record(i, (), prompt_length=i) for i in (1, 2, 3)])
    assert found.sharing is None and found.arrivals is None and found.outputs is None
    assert found.clients[0].bound is None and found.prompts.total == 6
    with pytest.raises(ValueError, match="no requests to describe"):
        described([])


def test_one_giant_client_among_many() -> None:
    records = [record(i, [1, 2, 3], client="giant") for i in range(50)]
    records += [record(i, [1, 2, 3], client=f"small {i}") for i in range(20)]
    found = described(records, top=3)
    assert (found.client_count, len(found.clients)) == (21, 3)
    assert found.clients[0].name == "giant" and found.clients[0].bound == 49 * 2 / 150
    assert found.clients[1].bound == 0.0


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 1), min_size=1, max_size=8), st.sampled_from("abc")),
        min_size=1,
        max_size=12,
    ),
    st.integers(1, 3),
)
def test_bounds_are_those_of_the_exact_trie(
    prompts: list[tuple[list[int], str]], page_size: int
) -> None:
    found = described([record(1, p, client=c) for p, c in prompts], page_size)
    assert found.sharing is not None

    def bound(of: list[list[int]]) -> float:
        requests = [
            Request(i, np.array(p, dtype=np.int32), max_new_tokens=1) for i, p in enumerate(of)
        ]
        return sharing_bound(prompt_paths(requests, page_size)).rate

    assert found.sharing.bound == pytest.approx(bound([p for p, _ in prompts]))
    for client in found.clients:
        own = [p for p, c in prompts if c == client.name]
        assert client.bound == pytest.approx(bound(own)) and client.requests == len(own)


def test_a_sample_stays_small_and_counts_stay_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("testbed.workloads.description.SAMPLE", 20)
    monkeypatch.setattr("testbed.workloads.description.SAMPLE_PAGES", 50)
    records = [record(i, [1, 2, 3, 4, i, i, i]) for i in range(500)]
    sharing = described(records).sharing
    assert sharing is not None and 1 <= sharing.sampled <= 16
    assert sharing.most_shared[0].requests == 500 and sharing.depth.p50 == 4
    assert sharing.bound == 499 * 4 / 3500
