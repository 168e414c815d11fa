"""Units, blocks and normal forms of prompt text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.advisor.text import IDENTIFIER, TIME, USER_FIELD, blocks, normal, units


@given(st.text(alphabet="ab .!?\n\r\tQ:[1]é-<doc>/", max_size=200))
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
    [
        "2026-09-11T08:00:00Z",
        "2026-09-11T08:00:00.123456+02:00",
        "20260911T080000Z",
        "2026/09/11",
        "09-11-2026",
        "11/09/2026",
        "8:05 pm",
        "1726041600",
        "1726041600.25",
        "Monday",
        "11 September 2026",
        "September 11th, 2026",
    ],
)
def test_times_are_known(text: str) -> None:
    assert TIME.sub("", f"now {text} then") == "now  then"


def test_nothing_is_left_of_a_date_in_words() -> None:
    for text in ("Fri Sep 11 2026 10:11:12", "Fri Sep 11 10:11:12 UTC 2026"):
        assert TIME.sub("", text).strip() == ""


@pytest.mark.parametrize(
    "text",
    [
        "123e4567-e89b-12d3-a456-426614174000",
        "ffffffff-abcd-abcd-abcd-abcdefabcdef",
        "Request-ID: 123e4567-e89b-12d3-a456-426614174000",
        "request_id=123e4567-e89b-12d3-a456-426614174000",
        "session 123e4567-e89b-12d3-a456-426614174000",
        "Trace-Id: 4bf92f3577b34da6",
        "req_a81bc3",
        "trace-id: 9f",
        "0a1b2c3d4e5f",
        "4711001",
    ],
)
def test_identifiers_are_known(text: str) -> None:
    assert IDENTIFIER.sub("", f"see {text} there") == "see  there"


@pytest.mark.parametrize(
    "text",
    [
        "jo@example.com",
        "user: jo",
        "Tenant=acme",
        "user_id: mia_li_3668",
        "tenant_id=acme",
        "userId: 5",
        "User ID: 77",
        "first_name: Mia",
        "en-GB",
        "+49 030 555-1234",
    ],
)
def test_user_fields_are_known(text: str) -> None:
    assert USER_FIELD.sub("", f"for {text} only") == "for  only"


def test_user_fields_of_json_are_known() -> None:
    text = '{"user_id": "u-7", "name": "Mia Li", "likes": "tea"}'
    assert "likes" in USER_FIELD.sub("", text)
    assert not any(value in USER_FIELD.sub("", text) for value in ("u-7", "Mia", "Li"))


def test_plain_prose_is_no_value() -> None:
    prose = "You may answer in one or two sentences and must not guess."
    assert not any(pattern.search(prose) for pattern in (TIME, IDENTIFIER, USER_FIELD))


def bodies_of(text: str, kind: str) -> list[str]:
    return [block.body for block in blocks(text) if block.kind == kind]


def test_lines_between_rules_are_blocks_and_the_rules_stay_between_them() -> None:
    assert bodies_of("one\n---\ntwo\n\n***\n\nthree\nfour", "paragraph") == [
        "one",
        "two",
        "three",
        "four",
    ]
    # A heading's underline is as long as the heading, and goes with it.
    assert bodies_of("Abstract\n========\nx", "paragraph") == ["Abstract", "========", "x"]


def test_tagged_chunks_end_with_their_tags() -> None:
    text = "<doc>\na\n\nb\n</doc>\n<doc>\nc\n\nd\n</doc>\nWhy?"
    assert bodies_of(text, "chunk") == ["\na\n\nb\n</doc>", "\nc\n\nd\n</doc>"]
    assert bodies_of(text, "paragraph") == ["Why?"]


def test_a_number_that_counts_the_chunks_stays_and_one_that_names_a_chunk_goes_with_it() -> None:
    assert bodies_of("[1] a\n[2] b\n\nWhy?", "chunk") == ["a", "b"]
    assert bodies_of("[7] a\n[2] b\n\nWhy?", "chunk") == ["[7] a", "[2] b"]
