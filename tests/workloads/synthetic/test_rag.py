from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.workloads import RagWorkload

SMALL: dict[str, Any] = {
    "num_requests": 60,
    "tenants": 2,
    "system_tokens": 3,
    "documents": 5,
    "document_tokens": 4,
    "documents_per_request": 2,
    "question_tokens": 2,
    "output_tokens": 3,
}
"""Numbers 0-5 are the two system prompts, 6-25 the five documents, 26 and up the questions."""


def prompts(**changed: Any) -> list[list[int]]:
    return [request.prompt.tolist() for request in RagWorkload(**(SMALL | changed))]


def segments(prompt: list[int]) -> list[str]:
    """What a prompt of SMALL is made of, told from the first number of each segment."""
    kinds = []
    at = 0
    while at < len(prompt):
        first = prompt[at]
        if first < 6:
            name, length = f"S{first // 3}", 3
        elif first < 26:
            name, length = f"D{(first - 6) // 4}", 4
        else:
            name, length = f"Q{(first - 26) // 2}", 2
        assert prompt[at : at + length] == list(range(first, first + length))
        kinds.append(name)
        at += length
    return kinds


def test_canonical_prompts_are_system_sorted_documents_question() -> None:
    workload = RagWorkload(**SMALL)
    assert (len(workload), workload.skipped_lines) == (60, 0)
    for i, request in enumerate(workload):
        system, first, second, question = segments(request.prompt.tolist())
        assert request.client == f"tenant-{system[1:]}"
        assert first < second
        assert (request.id, question, request.arrival) == (i, f"Q{i}", 0.0)
        assert (len(request.prompt), request.max_new_tokens) == (13, 3)


def test_every_order_arranges_the_same_draws() -> None:
    canonical = [segments(p) for p in prompts()]
    relevance = [segments(p) for p in prompts(order="relevance")]
    scrambled = [segments(p) for p in prompts(order="scrambled")]
    question_first = [segments(p) for p in prompts(order="question_first")]
    for c, r, s, q in zip(canonical, relevance, scrambled, question_first, strict=True):
        assert sorted(c) == sorted(r) == sorted(s)
        assert (r[0], r[-1]) == (c[0], c[-1])
        assert s[-1] == c[-1]
        assert q == [c[-1], *c[:-1]]
    assert any(c != r for c, r in zip(canonical, relevance, strict=True))
    assert {s[0][0] for s in scrambled} == {"S", "D"}


def test_the_most_popular_document_is_drawn_in_proportion() -> None:
    drawn = Counter(
        segments(p)[1]
        for p in prompts(num_requests=6000, documents_per_request=1, zipf_exponent=1.0)
    )
    total = 1 + 1 / 2 + 1 / 3 + 1 / 4 + 1 / 5
    for rank in range(5):
        expected = 6000 / (rank + 1) / total
        assert abs(drawn[f"D{rank}"] - expected) < 5 * expected**0.5


def test_a_pair_of_documents_is_a_weighted_draw_without_replacement() -> None:
    """Popularity 1 : 1/2 : 1/3, two draws: the first document is absent from 17 in 132."""
    # One system prompt (numbers 0-2), so the documents are 3-6, 7-10 and 11-14. The weights are
    # 6, 3 and 2 of 11: 3/11 * 2/8 + 2/11 * 3/9 = 9/132 + 8/132.
    pairs = Counter((p[3], p[7]) for p in prompts(num_requests=6000, documents=3, tenants=1))
    expected = 6000 * 17 / 132
    assert abs(pairs[(7, 11)] - expected) < 5 * expected**0.5


def test_exponent_0_draws_evenly_and_all_documents_can_be_asked_for() -> None:
    drawn = Counter(
        segments(p)[1] for p in prompts(num_requests=5000, documents_per_request=1, zipf_exponent=0)
    )
    assert all(abs(drawn[f"D{d}"] - 1000) < 150 for d in range(5))
    for p in prompts(documents_per_request=5):
        assert segments(p)[1:6] == ["D0", "D1", "D2", "D3", "D4"]


def test_a_pool_of_questions_repeats_them() -> None:
    asked = {segments(p)[-1] for p in prompts(questions=3)}
    assert asked == {"Q0", "Q1", "Q2"}


def test_no_system_prompt_leaves_the_segment_out() -> None:
    assert all(len(p) == 10 for p in prompts(system_tokens=0))


@given(st.integers(0, 5), st.sampled_from(["canonical", "relevance", "scrambled"]))
def test_walks_repeat_and_a_longer_run_begins_like_a_shorter_one(seed: int, order: str) -> None:
    workload = RagWorkload(**(SMALL | {"seed": seed, "order": order, "num_requests": 8}))
    walk = [r.prompt.tolist() for r in workload]
    assert walk == [r.prompt.tolist() for r in workload]
    assert walk == prompts(seed=seed, order=order)[:8]


def test_a_vocab_bounds_the_tokens_and_keeps_what_is_shared() -> None:
    plain = prompts()
    mixed = [r.prompt for r in RagWorkload(**SMALL, vocab=500)]
    assert max(p.max() for p in mixed) < 500
    names = {}
    for before, after in zip(plain, mixed, strict=True):
        for number, token in zip(before, after.tolist(), strict=True):
            assert names.setdefault(number, token) == token
    assert not np.array_equal(mixed[0], plain[0])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"num_requests": 0}, r"RagWorkload\.num_requests=0: a whole number of at least 1"),
        ({"tenants": 1.5}, r"RagWorkload\.tenants=1\.5"),
        ({"system_tokens": -1}, r"RagWorkload\.system_tokens=-1: a whole number of at least 0"),
        ({"documents_per_request": 6}, r"documents_per_request=6: a whole number from 1 to 5"),
        ({"zipf_exponent": -0.1}, r"RagWorkload\.zipf_exponent=-0\.1"),
        ({"zipf_exponent": float("nan")}, r"RagWorkload\.zipf_exponent=nan"),
        ({"questions": 0}, r"RagWorkload\.questions=0"),
        ({"question_tokens": 0}, r"RagWorkload\.question_tokens=0"),
        ({"output_tokens": True}, r"RagWorkload\.output_tokens=True"),
        ({"order": "random"}, r"RagWorkload\.order='random': one of canonical, relevance"),
        ({"vocab": 2**31 + 1}, r"RagWorkload\.vocab=2147483649"),
        ({"seed": None}, r"RagWorkload\.seed=None"),
        ({"document_tokens": 2**30}, r"RagWorkload: \d+ distinct prompt tokens"),
    ],
)
def test_bad_parameters(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RagWorkload(**(SMALL | changed))
