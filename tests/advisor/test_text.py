"""Units, blocks and normal forms of prompt text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.advisor.text import IDENTIFIER, TIME, USER_FIELD, blocks, normal, units


@given(st.text(alphabet="ab .!?\n\r\tQ:[1]é", max_size=200))
def test_units_and_blocks_hold_the_whole_text(text: str) -> None:
    assert "".join(units(text)) == text
    assert "".join(b.opening + b.body + b.ending for b in blocks(text)) == text


def test_units_are_lines_and_sentences() -> None:
    assert list(units("One. Two\n\n  three  \nfour.")) == [
        "One. ",
        "Two\n\n  ",
        "three  \n",
        "four.",
    ]


def test_examples_chunks_and_paragraphs_are_told_apart() -> None:
    text = "Answer.\n\nQ: a?\nA: b\n\nQ: c?\nA: d\n\nQ: e?\nA: f\n\n[1] x y\n\n[2] z\n\nGo on."
    assert [(b.kind, b.body) for b in blocks(text)] == [
        ("paragraph", "Answer."),
        ("exemplar", "a?\nA: b"),
        ("exemplar", "c?\nA: d"),
        ("exemplar", "e?\nA: f"),
        ("chunk", "x y"),
        ("chunk", "z"),
        ("paragraph", "Go on."),
    ]


def test_the_last_chunk_ends_where_the_same_chunk_ended_elsewhere() -> None:
    bodies = {"one": "one\n\ntwo"}
    found = blocks("[1] a\n\n[2] one\n\ntwo\n\nAnd?", bodies)
    assert [b.body for b in found] == ["a", "one\n\ntwo", "And?"]
    assert [b.body for b in blocks("[1] a\n\n[2] one\n\ntwo\n\nAnd?")] == [
        "a",
        "one",
        "two",
        "And?",
    ]


@pytest.mark.parametrize(
    ("one", "other"),
    [("a  b", "a b "), ("caf\u00e9", "cafe\u0301"), ("don\u2019t", "don't"), ("a\r\nb", "a\nb")],
)
def test_spellings_of_the_same_text_are_alike(one: str, other: str) -> None:
    assert normal(one) == normal(other)
    assert normal(one) != normal(other + "c")


@pytest.mark.parametrize(
    "text",
    ["2026-09-11T08:00:00Z", "11/09/2026", "8:05 pm", "1726041600", "Monday", "11 September 2026"],
)
def test_times_are_known(text: str) -> None:
    assert TIME.search(f"now {text} then")


@pytest.mark.parametrize(
    "text",
    [
        "123e4567-e89b-12d3-a456-426614174000",
        "req_a81bc3",
        "trace-id: 9f",
        "0a1b2c3d4e5f",
        "4711001",
    ],
)
def test_identifiers_are_known(text: str) -> None:
    assert IDENTIFIER.search(f"see {text} there")


@pytest.mark.parametrize(
    "text", ["jo@example.com", "user: jo", "Tenant=acme", "en-GB", "+49 030 555-1234"]
)
def test_user_fields_are_known(text: str) -> None:
    assert USER_FIELD.search(f"for {text} only") or USER_FIELD.search(f"for {text.lower()} only")


def test_plain_prose_is_no_value() -> None:
    prose = "You may answer in one or two sentences and must not guess."
    assert not any(pattern.search(prose) for pattern in (TIME, IDENTIFIER, USER_FIELD))
