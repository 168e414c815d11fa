from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.core.request import Request
from testbed.metrics.bounds import sharing_bound
from testbed.metrics.prompt_paths import prompt_paths
from testbed.metrics.template_order import SegmentColumn, best_order, order_bound
from testbed.workloads import TemplateSegment, TemplateWorkload
from tests.cases.serial import UNLIMITED, build_scheduler, serve_in_order

ABSENT = TemplateSegment()
SMALL: dict[str, Any] = {
    "num_requests": 40,
    "tenants": 3,
    "system": TemplateSegment(5),
    "tools": TemplateSegment(2, values=3, pieces=3),
    "context": TemplateSegment(4, values=5, pieces=2, zipf_exponent=1.0),
    "question": TemplateSegment(3, values=None),
    "timestamp": TemplateSegment(2, values=None),
    "user": ABSENT,
    "output_tokens": 3,
}
"""A number of whitespace stands before each segment's, in canonical order and then the volatile:
system 1-5, tools 7-12, context 14-33, questions 35-154, timestamps 156-235."""
FIRST = {"system": 1, "tools": 7, "context": 14, "question": 35, "timestamp": 156}
LENGTH = {"system": 5, "tools": 2, "context": 4, "question": 3, "timestamp": 2}


def requests(**changed: Any) -> list[Request]:
    return list(TemplateWorkload(**(SMALL | changed)))


def read(prompt: np.ndarray) -> list[tuple[str, int]]:
    """What a prompt of SMALL is made of: segment and number of each piece."""
    pieces = []
    at = 0
    while at < len(prompt):
        first = int(prompt[at])
        name = next(name for name, start in reversed(FIRST.items()) if first >= start)
        length = LENGTH[name]
        assert prompt[at : at + length].tolist() == list(range(first, first + length))
        pieces.append((name, (first - FIRST[name]) // length))
        at += length
    return pieces


def names(prompt: np.ndarray) -> list[str]:
    return list(dict.fromkeys(name for name, _ in read(prompt)))


def test_a_canonical_prompt() -> None:
    served = requests()
    assert [request.id for request in served] == list(range(40))
    for i, request in enumerate(served):
        pieces = read(request.prompt)
        assert pieces[:4] == [("system", 0), ("tools", 0), ("tools", 1), ("tools", 2)]
        (_, first), (_, second) = pieces[4:6]
        assert 0 <= first < second < 5
        assert pieces[6:] == [("question", i), ("timestamp", i)]
        assert (request.max_new_tokens, request.arrival, request.program) == (3, 0.0, None)
    assert {request.client for request in served} == {"tenant-0", "tenant-1", "tenant-2"}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"volatile_at": "front"}, "timestamp system tools context question"),
        ({"volatile_at": "after_system"}, "system timestamp tools context question"),
        ({"volatile_at": "after_tools"}, "system tools timestamp context question"),
        (
            {"order": ["question", "context", "tools", "system"]},
            "question context tools system timestamp",
        ),
        (
            {"order": ["tools", "timestamp", "system", "context", "question"]},
            "tools timestamp system context question",
        ),
        (
            {"order": ["context", "system", "tools", "question"], "volatile_at": "after_tools"},
            "context system tools timestamp question",
        ),
    ],
)
def test_orders(changed: dict[str, Any], expected: str) -> None:
    assert TemplateWorkload(**(SMALL | changed)).segment_names == tuple(expected.split())
    for request, canonical in zip(requests(**changed), requests(), strict=True):
        assert names(request.prompt) == expected.split()
        assert sorted(read(request.prompt)) == sorted(read(canonical.prompt))


def test_random_orders_leave_the_question_last_and_the_draws_alone() -> None:
    canonical = requests()
    per_tenant = requests(order="random_per_tenant")
    per_request = requests(order="random_per_request")
    for one, other, plain in zip(per_tenant, per_request, canonical, strict=True):
        for request in (one, other):
            assert names(request.prompt)[-2:] == ["question", "timestamp"]
            assert sorted(read(request.prompt)) == sorted(read(plain.prompt))
    of_tenant = {(request.client, *names(request.prompt)) for request in per_tenant}
    assert len(of_tenant) == 3
    assert len({tuple(names(request.prompt)) for request in per_request}) == 6


def test_pieces_can_be_shuffled_or_kept_as_they_were_drawn() -> None:
    tools = TemplateSegment(2, values=3, pieces=3, arrangement="shuffled")
    seen = {
        tuple(n for name, n in read(r.prompt) if name == "tools") for r in requests(tools=tools)
    }
    assert len(seen) == 6
    drawn = TemplateSegment(4, values=5, pieces=2, zipf_exponent=1.0, arrangement="drawn")
    pairs = [
        [n for name, n in read(r.prompt) if name == "context"] for r in requests(context=drawn)
    ]
    plain = [[n for name, n in read(r.prompt) if name == "context"] for r in requests()]
    assert [sorted(pair) for pair in pairs] == plain
    assert any(pair != sorted(pair) for pair in pairs)


def test_popularity_follows_the_zipf_exponent() -> None:
    """With exponent 1 the first of three is drawn in 6 of 11 cases, the others in 3 and 2."""
    context = TemplateSegment(4, values=3, zipf_exponent=1.0)
    served = requests(num_requests=6000, context=context)
    counts = Counter(int(request.prompt[11]) for request in served)
    shares = [counts[14 + 4 * k] / 6000 for k in range(3)]
    assert shares == pytest.approx([6 / 11, 3 / 11, 2 / 11], abs=0.03)


def test_jitter_puts_a_whitespace_token_in_front() -> None:
    served = requests(system=TemplateSegment(5, jitter=0.5))
    spaced = [int(request.prompt[0] == 0) for request in served]
    assert 5 < sum(spaced) < 35
    for request, is_spaced, plain in zip(served, spaced, requests(), strict=True):
        assert request.prompt[is_spaced:].tolist() == plain.prompt.tolist()


def test_values_of_a_tenant_are_its_own() -> None:
    served = requests(system=TemplateSegment(5, per_tenant=True))
    by_tenant = {(request.client, tuple(request.prompt[:5].tolist())) for request in served}
    assert len(by_tenant) == 3
    assert len({prompt for _, prompt in by_tenant}) == 3


def test_a_timestamp_of_few_values_moves_on_in_time() -> None:
    """40 requests, four hours: ten requests each, in order."""
    served = requests(timestamp=TemplateSegment(2, values=4))
    assert [read(request.prompt)[-1][1] for request in served] == sorted([0, 1, 2, 3] * 10)


def test_a_session_repeats_its_questions_and_outputs() -> None:
    served = requests(turns=4, open_sessions=3, context=ABSENT, timestamp=ABSENT)
    sessions: dict[str, list[Request]] = {}
    for request in served:
        assert request.program is not None
        before = sessions.setdefault(request.program, [])
        said = [[*r.prompt[-3:].tolist(), *r.output.tolist()] for r in before]
        head = served[0].prompt[:11].tolist()
        flat = [token for turn in said for token in turn]
        assert request.prompt[:-3].tolist() == head + flat
        assert request.turn == len(before)
        assert len({r.client for r in [*before, request]}) == 1
        before.append(request)
    assert [len(turns) for turns in sessions.values()] == [4] * 10
    # A chat's own prompts are prefixes of those that follow.
    for turns in sessions.values():
        for earlier, later in pairwise(turns):
            assert later.prompt[: len(earlier.prompt)].tolist() == earlier.prompt.tolist()


def test_lengths_are_drawn_once_for_each_value() -> None:
    served = requests(
        context=TemplateSegment(100, sd=30, values=4), timestamp=ABSENT, output_sd=2.0
    )
    lengths: dict[int, set[int]] = {}
    for request in served:
        lengths.setdefault(int(request.prompt[11]), set()).add(len(request.prompt))
    assert len(lengths) == 4
    assert all(len(found) == 1 for found in lengths.values())
    assert len({length for found in lengths.values() for length in found}) == 4
    assert len({request.max_new_tokens for request in served}) > 2


@settings(max_examples=40)
@given(
    st.permutations(["system", "tools", "context", "question"]),
    st.sampled_from(["front", "after_system", "after_tools", "end"]),
    st.sampled_from(["sorted", "drawn", "shuffled"]),
    st.sampled_from([0.0, 0.3]),
    st.integers(0, 3),
)
def test_an_unlimited_cache_hits_exactly_what_the_formula_says(
    order: list[str], place: str, arrangement: Any, jitter: float, seed: int
) -> None:
    workload = TemplateWorkload(
        **SMALL
        | {
            "num_requests": 15,
            "context": TemplateSegment(4, values=5, pieces=2, arrangement=arrangement),
            "system": TemplateSegment(5, values=2, jitter=jitter),
            "order": order,
            "volatile_at": place,
            "seed": seed,
        }
    )
    columns = [SegmentColumn(*column) for column in workload.columns()]
    bound = order_bound(columns)
    served = serve_in_order(build_scheduler(UNLIMITED), workload)
    assert sum(served.hits) == bound.hit_tokens
    assert sharing_bound(prompt_paths(workload, 1, min_computed_tokens=0)) == bound
    assert bound.total_tokens == sum(len(request.prompt) for request in workload)
    # The best order, served, hits what was promised.
    best = best_order(columns)
    reordered = [columns[j].name for j in best.order]
    mended = TemplateWorkload(
        **SMALL
        | {name: getattr(workload, name) for name in ("num_requests", "context", "system", "seed")}
        | {"order": reordered}
    )
    served = serve_in_order(build_scheduler(UNLIMITED), mended)
    assert sum(served.hits) == best.bound.hit_tokens >= bound.hit_tokens


def test_walks_are_equal_and_a_vocab_bounds_the_tokens() -> None:
    workload = TemplateWorkload(**SMALL, vocab=50)
    first, second = list(workload), list(workload)
    assert [r.prompt.tolist() for r in first] == [r.prompt.tolist() for r in second]
    assert max(int(request.prompt.max()) for request in first) < 50
    other = TemplateWorkload(**(SMALL | {"seed": 1}))
    assert [r.client for r in other] != [r.client for r in first]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"order": "best"}, r"order='best'.*canonical, random_per_tenant"),
        ({"order": ["system"]}, r"order=\['system'\].*system, tools, context, question once"),
        ({"order": ["system", "tools", "context", "question", "user"]}, "'user'"),
        ({"volatile_at": "middle"}, r"volatile_at='middle'.*front, after_system"),
        ({"system": ABSENT, "volatile_at": "after_system"}, "system has no tokens"),
        ({"system": 5}, r"system=5: a TemplateSegment"),
        ({"num_requests": 0}, "num_requests=0"),
        ({"turns": 0}, "turns=0"),
        (dict.fromkeys(("system", "tools", "context", "question"), ABSENT), "at least one segment"),
        ({"question": TemplateSegment(10_000_000, values=None), "num_requests": 300}, "int32"),
    ],
)
def test_bad_workloads(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TemplateWorkload(**(SMALL | changed))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tokens": -1}, r"tokens=-1"),
        ({"values": 2, "pieces": 3}, r"pieces=3: at most values=2"),
        ({"values": 0}, "values=0"),
        ({"jitter": 1.5}, r"jitter=1\.5"),
        ({"arrangement": "any"}, "sorted, drawn, shuffled"),
        ({"per_tenant": 1}, "per_tenant=1"),
    ],
)
def test_bad_segments(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=rf"TemplateSegment\..*{message}|{message}"):
        TemplateSegment(**fields)
