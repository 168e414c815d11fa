"""What the requests of each format say."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from testbed.workloads import data_folder
from testbed.workloads.formats import PROMPT, TOOL, Record, read_records
from testbed.workloads.formats.chat import chat_record

USER = {"role": "user", "content": "hi"}
ANSWER = {"role": "assistant", "content": "hello"}


@pytest.fixture
def one(tmp_path: Path) -> Any:
    """Reads a file of one JSON line."""

    def read(fields: Any, format: str | None = None) -> Record:
        path = tmp_path / "one.jsonl"
        path.write_text(json.dumps(fields) + "\n")
        (record,) = read_records(path, format)
        return record

    return read


def said(record: Record) -> list[tuple[str, Any]]:
    return [(segment.role, segment.content) for segment in record.segments]


def test_a_chat_with_all_it_can_say(one: Any) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"b": 1, "a": 2}}}
    call = {"id": "1", "function": {"name": "f", "arguments": "{}"}}
    record = one(
        {
            "messages": [
                {"role": "system", "content": "be kind"},
                {
                    "role": "user",
                    "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
                },
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "content": "", "tool_call_id": "1"},
            ],
            "tools": [tool],
            "user": "ann",
            "metadata": {"session_id": 7, "timestamp": "1970-01-01T00:01:00+00:00"},
            "response": {
                "choices": [{"message": {"content": "done"}}],
                "usage": {"completion_tokens": 2},
            },
        }
    )
    assert said(record) == [
        (TOOL, '{"type":"function","function":{"name":"f","parameters":{"b":1,"a":2}}}'),
        ("system", "be kind"),
        ("user", "ab"),
        ("assistant", '{"name":"f","arguments":"{}"}'),
        ("tool", ""),
    ]
    assert (record.client, record.session, record.turn, record.arrival) == ("ann", "7", 1, 60.0)
    assert (record.output, record.output_length) == ("done", 2)


@pytest.mark.parametrize(
    ("more", "output", "output_length"),
    [
        ({}, None, None),
        ({"max_tokens": 4}, None, 4),
        ({"max_completion_tokens": 6, "max_tokens": 4}, None, 6),
        ({"response": "yes", "max_tokens": 4}, "yes", None),
        ({"response": "yes", "usage": {"completion_tokens": 3}}, "yes", 3),
        ({"messages": [USER, ANSWER], "max_tokens": 4}, "hello", None),
        ({"messages": [USER, ANSWER], "response": "yes"}, "yes", None),
        ({"response": "", "max_tokens": 4}, None, 4),
    ],
)
def test_where_the_output_of_a_chat_is_taken_from(
    one: Any, more: dict[str, Any], output: str | None, output_length: int | None
) -> None:
    record = one({"messages": [USER]} | more)
    assert (record.output, record.output_length) == (output, output_length)
    assert len(record.segments) == (
        2 if more.get("response") == "yes" and "messages" in more else 1
    )


BAD_CHATS: dict[str, tuple[dict[str, Any], str]] = {
    "no list": ({"messages": "hi"}, 'messages is "hi"; a list of at least one'),
    "all empty": ({"messages": [{"role": "user", "content": ""}] * 2}, "messages are all empty"),
    "no role": ({"messages": [{"content": "a"}]}, r"messages\[0\]\.role is null; text"),
    "empty role": ({"messages": [{"role": "", "content": "a"}]}, r"messages\[0\]\.role is empty"),
    "text": ({"messages": ["a"]}, r'messages\[0\] is "a"; a JSON object'),
    "number": (
        {"messages": [USER, {"role": "user", "content": 3}]},
        r"messages\[1\]\.content is 3",
    ),
    "image": (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        r'messages\[0\]\.content\[0\]\.type is "image_url"; only text',
    ),
    "tools": ({"messages": [USER], "tools": {}}, "tools is an object; a list"),
    "tool": ({"messages": [USER], "tools": ["f"]}, r'tools\[0\] is "f"; a JSON object'),
    "metadata": ({"messages": [USER], "metadata": 3}, "metadata is 3; a JSON object"),
    "user": ({"messages": [USER], "user": 1.5}, "user is 1.5; text"),
    "no output": (
        {"messages": [USER], "response": "a", "usage": {"completion_tokens": 0}},
        r"usage\.completion_tokens is 0; a whole number from 1",
    ),
    "no output, limited": (
        {"messages": [USER], "max_tokens": 9, "usage": {"completion_tokens": 0}},
        r"usage\.completion_tokens is 0",
    ),
    "usage": ({"messages": [USER], "usage": []}, "usage is a list; a JSON object"),
    "400 digits": ({"messages": [USER], "timestamp": 10**400}, "timestamp is 1000.*; seconds"),
    "beyond all": ({"messages": [USER], "timestamp_ms": 2e14}, "timestamp_ms is .*; milliseconds"),
    "before 1970": ({"messages": [USER], "created_at": "1969-12-31"}, ".*; a date from 1970"),
    "far future": ({"messages": [USER], "created_at": "9999-01-01"}, ".*; a date from 1970"),
    "limit": ({"messages": [USER], "max_tokens": 0}, "max_tokens is 0; a whole number from 1"),
    "date": ({"messages": [USER], "created_at": "noon"}, 'created_at is "noon"; an ISO 8601 date'),
    "milliseconds": (
        {"messages": [USER], "timestamp": 1_700_000_000_000},
        "timestamp is 1700000000000; seconds .* are read from timestamp_ms",
    ),
    "negative": ({"messages": [USER], "timestamp": -1}, "timestamp is -1; seconds from 0"),
    "response": ({"messages": [USER], "response": {"id": 1}}, "response has no choices"),
}


@pytest.mark.parametrize(("fields", "message"), BAD_CHATS.values(), ids=BAD_CHATS.keys())
def test_bad_chats(one: Any, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"line 1: {message}"):
        one(fields)


@pytest.mark.parametrize(
    ("fields", "seconds"),
    [
        ({"timestamp": 3}, 3.0),
        ({"timestamp_ms": 3500}, 3.5),
        ({"arrival_time_ns": 2_000_000_000}, 2.0),
        ({"created": 1_700_000_000}, 1_700_000_000.0),
        ({"created_at": "1970-01-02T00:00:00Z"}, 86_400.0),
        ({"created_at": "1970-01-02 01:00:00+01:00"}, 86_400.0),
        ({"metadata": {"arrival_s": 4}}, 4.0),
    ],
)
def test_arrival_times(one: Any, fields: dict[str, Any], seconds: float) -> None:
    assert one({"prompt": "a"} | fields).arrival == seconds
    assert one({"messages": [USER]} | fields).arrival == seconds


def test_batches_hold_chats_and_completions(one: Any) -> None:
    record = one({"custom_id": "a", "body": {"messages": [USER], "max_tokens": 3, "user": "u"}})
    assert (said(record), record.client, record.output_length) == ([("user", "hi")], "u", 3)
    record = one({"custom_id": "a", "body": {"prompt": [4, 5], "max_tokens": 3}})
    assert [s.content.tolist() for s in record.segments] == [[4, 5]]
    with pytest.raises(ValueError, match="line 1: body is null; a JSON object is needed"):
        one({"custom_id": "a", "body": None})


def test_a_batch_line_tells_more_outside_its_body(one: Any) -> None:
    outer = {"user": "u", "timestamp": 7, "metadata": {"session_id": "s", "tenant": "t"}}
    record = one(outer | {"body": {"messages": [USER], "metadata": {"session_id": "inner"}}})
    assert (record.client, record.arrival, record.session) == ("u", 7.0, "inner")
    answered = {"response": {"status_code": 200, "body": {"choices": [{"message": ANSWER}]}}}
    assert one(outer | answered | {"body": {"messages": [USER]}}).output == "hello"
    record = one(outer | {"body": {"prompt": "a", "user": "mine"}})
    assert (record.client, record.arrival, record.session) == ("mine", 7.0, "s")


def test_prompt_text_outside_the_messages(one: Any) -> None:
    record = one({"messages": [USER], "system": [{"type": "text", "text": "be kind"}]})
    assert said(record) == [("system", "be kind"), ("user", "hi")]
    function = {"name": "f", "parameters": {}}
    record = one({"messages": [USER], "functions": [function], "instructions": "be brief"})
    assert said(record) == [
        (TOOL, '{"name":"f","parameters":{}}'),
        ("system", "be brief"),
        ("user", "hi"),
    ]
    record = one({"input": "hi", "instructions": "be brief"})
    assert said(record) == [("system", "be brief"), ("user", "hi")]
    with pytest.raises(ValueError, match="input_ids is token ids beside a system prompt"):
        one({"input_ids": [1], "system": "be kind"})


def test_a_legacy_function_call_is_part_of_the_prompt(one: Any) -> None:
    call = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}
    record = one({"messages": [USER, call, {"role": "function", "content": "4"}]})
    assert said(record)[1] == ("assistant", '{"name":"f","arguments":"{}"}')


def test_tools_nested_too_deep(tmp_path: Path) -> None:
    """What was parsed near the limit of recursion may be too deep to be written again."""
    deep: Any = []
    for _ in range(3000):
        deep = [deep]
    with pytest.raises(ValueError, match=r"tools\[0\] is nested too deep"):
        chat_record(1, {"messages": [USER], "tools": [{"a": deep}]})
    with pytest.raises(ValueError, match=r"a call of messages\[0\] is nested too deep"):
        chat_record(1, {"messages": [{"role": "assistant", "tool_calls": [{"a": deep}]}]})
    path = tmp_path / "deep.jsonl"
    for depth in range(900, 1000):
        nested = "[" * depth + "]" * depth
        path.write_text(f'{{"messages":[{json.dumps(USER)}],"tools":[{{"a":{nested}}}]}}\n')
        assert len(list(read_records(path, "openai_chat", on_error="skip"))) <= 1


def test_an_empty_user_is_nobody(one: Any) -> None:
    assert one({"messages": [USER], "user": ""}).client == "default"
    record = one({"messages": [USER], "user": "", "tenant": "t", "session_id": ""})
    assert (record.client, record.session) == ("t", None)
    assert one({"messages": [USER], "user": "", "metadata": {"user_id": 5}}).client == "5"


def test_sglangs_custom_conversations(one: Any) -> None:
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    record = one({"conversation": turns, "conversation_id": "x"})
    assert (said(record), record.output, record.session) == ([("user", "a")], "b", "x")
    with pytest.raises(ValueError, match=r"conversation\[0\]\.from is 'cat'"):
        one({"conversation": [{"from": "cat", "value": ""}]})


def test_a_long_conversation_is_read_one_answer_at_a_time(tmp_path: Path) -> None:
    turns = [{"from": who, "value": "x"} for _ in range(3000) for who in ("human", "gpt")]
    path = tmp_path / "long"
    path.write_text(json.dumps({"conversations": turns}))
    tracemalloc.start()
    count = sum(1 for _ in read_records(path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # All prompts at once hold 3000 * 3000 references of eight bytes.
    assert count == 3000 and peak < 20e6


def test_every_answer_of_a_conversation_is_a_request(one: Any, tmp_path: Path) -> None:
    turns = [("gpt", "a"), ("human", "b"), ("gpt", "c"), ("human", "d"), ("gpt", "")]
    path = tmp_path / "log"
    path.write_text(
        json.dumps([{"id": "x", "conversations": [{"from": f, "value": v} for f, v in turns]}])
    )
    first, second = read_records(path)
    assert said(first) == [("assistant", "a"), ("user", "b")]
    assert (first.session, first.turn, first.output) == ("x", 0, "c")
    assert said(second) == [*said(first), ("assistant", "c"), ("user", "d")]
    assert (second.session, second.turn, second.output, second.output_length) == (
        "x",
        1,
        None,
        None,
    )


@pytest.mark.parametrize(
    ("conversation", "message"),
    [
        ([], "conversations is empty"),
        ([{"from": "human", "value": "a"}], "conversations has no answer"),
        ([{"from": "gpt", "value": "a"}], "conversations has no answer"),
        ([{"from": "cat", "value": "a"}], r"conversations\[0\]\.from is 'cat'; one of human"),
        ([{"from": "human"}], r"conversations\[0\]\.value is null; text"),
    ],
)
def test_bad_conversations(one: Any, conversation: list[Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        one({"conversations": conversation})


def test_llmservingsims_token_ids(one: Any) -> None:
    row = {
        "input_toks": 2,
        "output_toks": 3,
        "arrival_time_ns": 500_000_000,
        "input_tok_ids": [5, 6],
        "output_tok_ids": [7, 8, 9],
    }
    record = one(row)
    assert record.segments[0].role == PROMPT and record.segments[0].content.tolist() == [5, 6]
    assert record.output.tolist() == [7, 8, 9] and record.output_length is None
    assert record.arrival == 0.5
    with pytest.raises(ValueError, match="input_toks is 3, but 2 tokens are there"):
        one(row | {"input_toks": 3})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"prompt": ""}, "prompt is empty"),
        ({"prompt": []}, "prompt has 0 entries; 1 to"),
        ({"prompt": ["a", "b"]}, "prompt is a list of texts; one prompt a line"),
        ({"prompt": [1, -1]}, "prompt holds -1; whole numbers from 0 to 2147483647"),
        ({"prompt": [2**31]}, "prompt holds 2147483648"),
        ({"prompt": [True]}, "prompt holds true"),
        ({"prompt": 3}, "prompt is 3; text is needed"),
        ({"prompt": None}, "no prompt; one of prompt, text, input"),
        ({"prompt": "a", "output_len": 1.5}, "output_len is 1.5; a whole number from 1"),
    ],
)
def test_bad_prompts(one: Any, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        one(fields)


AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("2023-11-16 18:15:46,0,44", "line 2: ContextTokens is '0'; a whole number from 1"),
        ("2023-11-16 18:15:46,3.5,44", "ContextTokens is '3.5'"),
        (f"2023-11-16 18:15:46,{'9' * 5000},44", "ContextTokens is '9999"),
        ("2023-11-16 18:15:46,374", "line 2: 2 columns; 3, as in the header, are needed"),
        ("2023-11-16 18:15,374,", "GeneratedTokens is ''"),
        ("yesterday,374,44", 'TIMESTAMP is "yesterday"; an ISO 8601 date'),
        ("nan,374,44", "TIMESTAMP is 'nan'; seconds"),
        ('"2023,374,44', "not CSV"),
    ],
)
def test_bad_rows_of_lengths(tmp_path: Path, row: str, message: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(f"{AZURE}{row}\n2023-11-16 18:15:46.6805900,374,44\n")
    with pytest.raises(ValueError, match=message):
        list(read_records(path))
    skipping = read_records(path, on_error="skip")
    assert ([r.prompt_length for r in skipping], skipping.skipped_lines) == ([374], 1)


def in_data_folder(name: str) -> Path:
    path = (data_folder() or Path()) / name
    if not path.is_file():
        pytest.skip(f"{name} is not in the data folder")
    return path


@pytest.mark.parametrize(
    ("name", "requests", "prompt_tokens", "output_tokens"),
    [
        # Counted by awk over the columns.
        ("azure/AzureLLMInferenceTrace_conv.csv", 19_366, 22_361_870, 4_088_665),
        ("azure/AzureLLMInferenceTrace_code.csv", 8_819, 18_059_974, 245_896),
        ("arena/vtc_arena_real_trace.csv", 1_500, 204_398, 384_297),
    ],
)
def test_published_traces_of_lengths(
    name: str, requests: int, prompt_tokens: int, output_tokens: int
) -> None:
    records = list(read_records(in_data_folder(name)))
    assert len(records) == requests
    assert sum(r.prompt_length or 0 for r in records) == prompt_tokens
    assert sum(r.output_length or 0 for r in records) == output_tokens
    times = [r.arrival or 0.0 for r in records]
    assert times == sorted(times)
