from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

from testbed.workloads.formats import FORMATS, read_records


def chat(content: str = "hello", **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}], "max_tokens": 5} | more


MOONCAKE = {"timestamp": 0, "input_length": 600, "output_length": 3, "hash_ids": [0, 7]}
LINES: dict[str, tuple[str, str]] = {
    "mooncake": (json.dumps(MOONCAKE), "mooncake"),
    "chat": (json.dumps(chat()), "openai_chat"),
    "batch": (json.dumps({"custom_id": "a", "body": chat()}), "openai_batch"),
    "sharegpt": (
        json.dumps({"conversations": [{"from": f, "value": f} for f in ("human", "gpt")]}),
        "sharegpt",
    ),
    "vllm custom": ('{"prompt": "hello", "output_tokens": 9}', "prompts"),
    "completions": ('{"prompt": [1, 2], "max_tokens": 9}', "prompts"),
    "sglang generate": ('{"text": "hello", "sampling_params": {"max_new_tokens": 4}}', "prompts"),
    "token ids": ("[1, 2, 3]", "token_ids"),
    "text": ("Tell me a story, please.", "text"),
    "azure": (
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44",
        "lengths",
    ),
}


def write(path: Path, text: str) -> Path:
    path.write_bytes(text.encode())
    return path


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.mark.parametrize(("line", "format"), LINES.values(), ids=LINES.keys())
def test_the_format_is_found_by_content_in_any_wrapping(log: Path, line: str, format: str) -> None:
    first, *rest = line.split("\n")
    wrapped = {
        "plain": f"{line}\n".encode(),
        "no newline at the end": line.encode(),
        "blank lines": f"\n  \n{first}\n\n{''.join(rest)}\n".encode(),
        "CRLF": "".join(f"{part}\r\n" for part in (first, *rest)).encode(),
        "byte order mark": f"\ufeff{line}\n".encode(),
        "gzip": gzip.compress(line.encode()),
    }
    shown = []
    for content in wrapped.values():
        log.write_bytes(content)
        reader = read_records(log)
        records = list(reader)
        assert (reader.format, len(records), reader.skipped_lines) == (format, 1, 0)
        record = records[0]
        shown.append(
            [
                (s.role, s.content if isinstance(s.content, str) else s.content.tolist())
                for s in record.segments
            ]
            + [record.prompt_length, record.output_length]
        )
    assert all(found == shown[0] for found in shown)
    assert [len(list(read_records(log, format))) for _ in "ab"] == [1, 1]


def test_every_format_is_tried_above() -> None:
    assert {format for _, format in LINES.values()} == set(FORMATS)


def test_objects_may_stand_in_one_array_over_any_lines(log: Path) -> None:
    entries = [chat(f"number {i} äöü 😀", user=f"u{i}") for i in range(3)]
    for text in (json.dumps(entries), json.dumps(entries, indent=2, ensure_ascii=False)):
        records = list(read_records(write(log, text)))
        assert [r.segments[0].content for r in records] == [
            e["messages"][0]["content"] for e in entries
        ]
        assert [r.client for r in records] == ["u0", "u1", "u2"]
    # An entry takes nine lines and the brackets two; it begins where its brace stands.
    assert [r.line for r in records] == [2, 12, 22]
    assert [r.segments[0].content.tolist() for r in read_records(write(log, "[[1, 2], [3]]"))] == [
        [1, 2],
        [3],
    ]


def test_an_array_is_read_in_pieces_wherever_they_end(log: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("testbed.workloads.formats.source._CHUNK", 7)
    entries = [chat('ä😀\\"' * i + "x") for i in range(6)]
    records = read_records(write(log, json.dumps(entries, ensure_ascii=False, indent=1)))
    assert [r.segments[0].content for r in records] == [
        e["messages"][0]["content"] for e in entries
    ]


BAD_ARRAYS = {
    '[{"prompt": "a"}, {"prompt": "b': r"line 1: not JSON \(Unterminated.*cut off",
    '[{"prompt": "a"},\n{"prompt": b}]': r"line 2: not JSON \(Expecting value",
    '[{"prompt": "a"}': r"line 1: the end of the file where '\]' is due",
    '[{"prompt": "a"}] x': r"line 1: text follows the array's end",
    '[{"prompt": "a"} {"prompt": "b"}]': r"line 1: '\{' where '\]' is due",
    '[{"prompt": "a"},\n{"prompt": NaN}]': r"line 2: .*NaN is no number",
}


@pytest.mark.parametrize(("text", "message"), BAD_ARRAYS.items())
def test_a_broken_array_is_an_error_even_when_skipping(log: Path, text: str, message: str) -> None:
    write(log, text)
    for on_error in ("raise", "skip"):
        with pytest.raises(ValueError, match=message):
            list(read_records(log, on_error=on_error))


GOOD = json.dumps(chat())
BAD_LINES: dict[str, tuple[bytes, str]] = {
    "half written": (b'{"messages": [{"role": "us', "not JSON"),
    "not UTF-8": (b'{"messages": "\xff"}', r"not UTF-8 \(byte 0xff at position 14\)"),
    "a NUL": (b'{"messages": "\0"}', "a NUL stands in the line"),
    "another format": (b'{"prompt": "a"}', "the line is prompts, but the file is read as openai"),
    "no format": (b'{"question": "a"}', "no messages, but the file is read as openai_chat"),
    "a list": (b"[1]", "the line is a list; a JSON object is needed"),
    "deep": (b"[" * 100_000, "not JSON"),
    "no messages": (b'{"messages": []}', "messages is empty"),
    "infinite": (
        b'{"messages": [], "max_tokens": Infinity}',
        r"not JSON \(Infinity is no number\)",
    ),
    "half a pair": (
        b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
        r"messages\[0\]\.content holds half a surrogate pair",
    ),
}


@pytest.mark.parametrize(("line", "message"), BAD_LINES.values(), ids=BAD_LINES.keys())
def test_a_bad_line_is_an_error_or_is_counted(log: Path, line: bytes, message: str) -> None:
    log.write_bytes(b"\n".join([GOOD.encode(), b"", line, GOOD.encode(), b""]))
    with pytest.raises(ValueError, match=rf"log, line 3: {message}") as error:
        list(read_records(log))
    assert "\n" not in str(error.value) and len(str(error.value)) < len(str(log)) + 250
    skipping = read_records(log, on_error="skip")
    for _ in range(2):
        assert [record.line for record in skipping] == [1, 4]
        assert skipping.skipped_lines == 1


def test_a_cut_off_last_line_says_so(log: Path) -> None:
    write(log, f"{GOOD}\n{GOOD[:40]}")
    with pytest.raises(ValueError, match=r"line 2: not JSON .*the file ends within this line"):
        list(read_records(log))


def test_a_json_line_among_plain_prompts_is_not_taken_for_text(log: Path) -> None:
    write(log, f'Tell me.\n{{"not": "known"}}\n{GOOD}\n')
    with pytest.raises(ValueError, match="line 3: the line is openai_chat, but the file began"):
        list(read_records(log))
    assert len(list(read_records(log, "text"))) == 3


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"\n \r\n", "is empty"),
        (b'{"question": 1}\n', "line 1: the object is of no known format; one of hash_ids"),
        (b'[{"question": 1}]', "the array's first entry is of no known format"),
        (b"[]", "the array's first entry is of no known format"),
        ("hello".encode("utf-16"), "the file is UTF-16; UTF-8 is needed"),
        (b"{broken\n", "line 1: not JSON"),
        (gzip.compress(b"hello\n" * 1000, mtime=0)[:30], "the gzip file is broken"),
        (gzip.compress(b"hello", mtime=0)[:12] + b"xxxxxxxxxxxxxxxx", "the gzip file is broken"),
    ],
)
def test_a_file_that_cannot_be_read_at_all(log: Path, content: bytes, message: str) -> None:
    log.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        list(read_records(log))


def test_bad_parameters(log: Path) -> None:
    write(log, GOOD)
    with pytest.raises(ValueError, match="format='csv': one of mooncake, "):
        read_records(log, "csv")
    with pytest.raises(ValueError, match="on_error='ignore': one of raise, skip"):
        read_records(log, on_error="ignore")  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError, match="nowhere"):
        read_records(log.with_name("nowhere"))


def test_a_line_beyond_all_bounds_is_no_request(log: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("testbed.workloads.formats.source.MAX_ENTRY_BYTES", 50)
    write(log, f"short\n{'x' * 51}\n")
    with pytest.raises(ValueError, match="line 2: longer than 50 bytes"):
        list(read_records(log))


def test_a_prompt_of_a_million_tokens_is_read(log: Path) -> None:
    write(log, json.dumps({"prompt": list(range(1_000_000))}))
    (record,) = read_records(log)
    assert len(record.segments[0].content) == 1_000_000


def test_records_are_streamed(log: Path) -> None:
    write(log, f"{GOOD}\n" * 3 + "broken\n")
    walk = iter(read_records(log))
    assert [next(walk).line for _ in range(3)] == [1, 2, 3]
    with pytest.raises(ValueError, match="line 4"):
        next(walk)


MIXED_TIMES = {
    "units": ({"timestamp": 1}, {"timestamp_ms": 2000}, "timestamp_ms as a number", "timestamp as"),
    "fields": ({"created": 1}, {"arrival": 2}, "arrival as a number", "created as a number"),
    "kinds": (
        {"timestamp": 1},
        {"timestamp": "2024-01-01T00:00:00Z"},
        "timestamp as a date",
        "timestamp as a number",
    ),
}


@pytest.mark.parametrize("case", MIXED_TIMES.values(), ids=MIXED_TIMES.keys())
def test_times_are_told_by_one_field_in_one_unit(log: Path, case: Any) -> None:
    first, second, found, known = case
    write(log, f"{GOOD}\n{json.dumps(chat(**first))}\n{json.dumps(chat(**second))}\n")
    message = f"line 3: the time is {found}, but {known}.* in line 2; one field in one unit"
    with pytest.raises(ValueError, match=message):
        list(read_records(log))
    skipping = read_records(log, on_error="skip")
    assert ([r.line for r in skipping], skipping.skipped_lines) == ([1, 2], 1)


def test_rows_of_lengths_are_in_one_kind_of_time(log: Path) -> None:
    write(log, "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16,3,4\n5.0,3,4\n")
    with pytest.raises(ValueError, match="line 3: the time is TIMESTAMP as a number, but"):
        list(read_records(log))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("log", "prompt,response\nHello there,Hi\n"),
        ("log", "my prompt,its length\nhello,5\n"),
        ("log.csv", "What a question\nanother\n"),
    ],
)
def test_a_table_of_unknown_columns_is_no_list_of_prompts(log: Path, name: str, text: str) -> None:
    path = write(log.with_name(name), text)
    for on_error in ("raise", "skip"):
        with pytest.raises(ValueError, match=r"no known header of a CSV.*ContextTokens.*format"):
            read_records(path, on_error=on_error)
    assert len(list(read_records(path, "text"))) == 2
    with pytest.raises(ValueError, match="line 1: no known header of a CSV"):
        list(read_records(path, "lengths"))


@pytest.mark.parametrize(
    "first", ['"Hello', "a\rb", "x" * 200_000, "Well, yes, I think.", "Tell me, please, why\n1 2"]
)
def test_plain_prompts_that_are_no_csv(log: Path, first: str) -> None:
    reader = read_records(write(log, f"{first}\n"))
    assert reader.format == "text"
    assert next(iter(reader)).segments[0].content == first.split("\n")[0]


@pytest.mark.parametrize("first", ["[INST] hi", "{{ system }} hi", '{"question": 1}'])
def test_what_looks_like_json_may_be_text_if_told(log: Path, first: str) -> None:
    write(log, f"{first}\n")
    with pytest.raises(ValueError, match=r"line 1: .*as it stands, give the format text"):
        read_records(log)
    assert [r.segments[0].content for r in read_records(log, "text")] == [first]


@pytest.mark.parametrize("bad", [b"{broken", b'{"question": 1}', b"\xff\xfa", b"[INST]"])
def test_a_bad_first_line_is_skipped_too(log: Path, bad: bytes) -> None:
    log.write_bytes(bad + b"\n" + f"{GOOD}\n".encode())
    skipping = read_records(log, on_error="skip")
    assert skipping.format == "openai_chat"
    assert ([r.line for r in skipping], skipping.skipped_lines) == ([2], 1)
    write(log, f'[{{"question": 1}}, {GOOD}]')
    skipping = read_records(log, on_error="skip")
    assert (len(list(skipping)), skipping.skipped_lines) == (1, 1)


def test_a_field_that_stands_twice(log: Path) -> None:
    write(log, f'{GOOD}\n{{"prompt": "a", "prompt": "b"}}\n')
    with pytest.raises(ValueError, match='line 2: not JSON \\("prompt" stands twice in one object'):
        list(read_records(log))
    write(log, '[{"prompt": "a", "x": {"y": 1, "y": 2}}]')
    with pytest.raises(ValueError, match='line 1: not JSON \\("y" stands twice'):
        list(read_records(log))


@pytest.mark.parametrize("block_size", [0, -1, 10**12])
def test_block_sizes_out_of_bounds(log: Path, block_size: int) -> None:
    write(log, json.dumps(MOONCAKE))
    with pytest.raises(ValueError, match=f"block_size={block_size}: a whole number from 1 to"):
        read_records(log, block_size=block_size)


def test_what_is_no_regular_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="it is a folder"):
        read_records(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileNotFoundError, match="no regular file"):
        read_records(tmp_path / "pipe")
