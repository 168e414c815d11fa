from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from testbed.workloads import MooncakeTrace, data_folder


def row(**changed: Any) -> dict[str, Any]:
    """A good line: 600 tokens in two blocks."""
    return {
        "timestamp": 1000,
        "input_length": 600,
        "output_length": 3,
        "hash_ids": [0, 1],
    } | changed


def without(name: str) -> str:
    return json.dumps({key: value for key, value in row().items() if key != name})


@pytest.fixture
def trace_file(tmp_path: Path) -> Path:
    return tmp_path / "trace.jsonl"


def write(path: Path, *lines: dict[str, Any] | str) -> Path:
    path.write_text("".join((x if isinstance(x, str) else json.dumps(x)) + "\n" for x in lines))
    return path


def test_each_hash_id_is_512_tokens_and_the_last_block_is_cut(trace_file: Path) -> None:
    trace = MooncakeTrace(
        write(
            trace_file,
            row(timestamp=0, output_length=2),
            row(timestamp=1500.0, input_length=1024, hash_ids=[0, 7]),
            row(timestamp=1500, input_length=1, hash_ids=[3]),
        )
    )
    first, second, third = trace
    assert first.prompt.dtype == np.int32
    assert first.prompt.tolist() == list(range(600))
    assert second.prompt.tolist() == [*range(512), *range(7 * 512, 8 * 512)]
    assert third.prompt.tolist() == [3 * 512]
    assert [r.id for r in trace] == [0, 1, 2]
    assert [r.arrival for r in trace] == [0.0, 1.5, 1.5]
    assert [r.max_new_tokens for r in trace] == [2, 3, 3]
    assert [len(r.output) for r in trace if r.output is not None] == [2, 3, 3]
    assert (len(trace), trace.skipped_lines, trace.name) == (3, 0, "mooncake")


def test_every_walk_is_the_same(trace_file: Path) -> None:
    trace = MooncakeTrace(write(trace_file, row(), row(hash_ids=[0, 2])), seed=4)
    walks = [[(r.prompt.tolist(), r.output.tolist(), r.arrival) for r in trace] for _ in "ab"]
    assert walks[0] == walks[1]
    other = MooncakeTrace(trace_file, seed=5)
    assert [r.prompt.tolist() for r in other] == [prompt for prompt, _, _ in walks[0]]
    assert [r.output.tolist() for r in other] != [output for _, output, _ in walks[0]]


def test_speedup_limit_and_block_size(trace_file: Path) -> None:
    rows = [row(timestamp=t, input_length=5, hash_ids=[0, 9]) for t in (0, 2000, 6000)]
    trace = MooncakeTrace(write(trace_file, *rows), limit=2, speedup=4.0, block_size=4)
    assert len(trace) == 2
    assert [r.arrival for r in trace] == [0.0, 0.5]
    assert next(iter(trace)).prompt.tolist() == [0, 1, 2, 3, 36]


def test_with_a_vocab_shared_ids_are_still_shared_tokens(trace_file: Path) -> None:
    write(trace_file, row(), row(hash_ids=[0, 2]), row(input_length=512, hash_ids=[1]))
    a, b, c = (r.prompt for r in MooncakeTrace(trace_file, vocab=1000))
    assert max(a.max(), b.max()) < 1000 and min(a.min(), b.min()) >= 0
    assert a[:512].tolist() == b[:512].tolist()
    assert a[512:].tolist() == c[:88].tolist()
    assert np.count_nonzero(a[512:] == b[512:]) < 5


def test_the_largest_hash_id_fills_int32(trace_file: Path) -> None:
    write(trace_file, row(input_length=512, hash_ids=[4_194_303]))
    (request,) = MooncakeTrace(trace_file)
    assert request.prompt[-1] == 2**31 - 1


def test_blank_lines_are_passed_over_but_counted_in_line_numbers(trace_file: Path) -> None:
    write(trace_file, row(), "", "  ", row(hash_ids=[0, 2]))
    trace = MooncakeTrace(trace_file)
    assert (len(trace), trace.skipped_lines) == (2, 0)
    write(trace_file, row(), "", "nonsense")
    with pytest.raises(ValueError, match=r"trace\.jsonl, line 3: "):
        MooncakeTrace(trace_file)


BAD_LINES: dict[str, tuple[dict[str, Any] | str, str]] = {
    "text": ("nonsense", "not JSON"),
    "half": ('{"timestamp": 1000, "input_le', "not JSON"),
    "deep": ("[" * 100_000, "not JSON"),
    "list": ("[1, 2]", "the line is a list; a JSON object is needed"),
    "null": ("null", "the line is null; a JSON object is needed"),
    "no timestamp": (without("timestamp"), "timestamp is missing"),
    "no input_length": (without("input_length"), "input_length is missing"),
    "no output_length": (without("output_length"), "output_length is missing"),
    "no hash_ids": (without("hash_ids"), "hash_ids is missing"),
    "timestamp text": (row(timestamp="1000"), 'timestamp is "1000"; a whole number from 0'),
    "timestamp bool": (row(timestamp=True), "timestamp is true; a whole number"),
    "timestamp null": (row(timestamp=None), "timestamp is null; a whole number"),
    "timestamp fraction": (row(timestamp=1000.5), "timestamp is 1000.5; a whole number"),
    "timestamp nan": (row(timestamp=float("nan")), "not JSON (NaN is no number)"),
    "timestamp infinite": (row(timestamp=float("inf")), "not JSON (Infinity is no number)"),
    "timestamp negative": (row(timestamp=-1), "timestamp is -1; a whole number"),
    "timestamp huge": (row(timestamp=10**400), "timestamp is 1000"),
    "timestamp order": (row(timestamp=999), "timestamp 999 is before 1000"),
    "input float": (row(input_length=600.0), "input_length is 600.0; a whole number"),
    "input bool": (row(input_length=True, hash_ids=[0]), "input_length is true; a whole number"),
    "input zero": (row(input_length=0, hash_ids=[]), "input_length is 0; a whole number from 1"),
    "input negative": (row(input_length=-600), "input_length is -600; a whole number from 1"),
    "input huge": (row(input_length=10_000_001), "input_length is 10000001; a whole number from 1"),
    "output text": (row(output_length="3"), 'output_length is "3"; a whole number from 1'),
    "output zero": (row(output_length=0), "output_length is 0; a whole number from 1"),
    "output negative": (row(output_length=-3), "output_length is -3; a whole number from 1"),
    "output huge": (row(output_length=10**9), "output_length is 1000000000; a whole number"),
    "ids number": (row(hash_ids=5), "hash_ids is 5; a list of 2 whole numbers is needed"),
    "ids few": (row(hash_ids=[0]), "hash_ids has 1 entries; input_length 600 needs 2"),
    "ids many": (row(hash_ids=[0, 1, 2]), "hash_ids has 3 entries; input_length 600 needs 2"),
    "id bool": (row(hash_ids=[0, True]), "hash_ids holds true; whole numbers from 0 to 4194303"),
    "id float": (row(hash_ids=[0, 1.0]), "hash_ids holds 1.0; whole numbers"),
    "id text": (row(hash_ids=["0", 1]), 'hash_ids holds "0"; whole numbers'),
    "id list": (row(hash_ids=[0, [1]]), "hash_ids holds a list; whole numbers"),
    "id negative": (row(hash_ids=[0, -1]), "hash_ids holds -1; whole numbers"),
    "id large": (row(hash_ids=[0, 4_194_304]), "hash_ids holds 4194304; whole numbers from 0"),
}


@pytest.mark.parametrize(("line", "message"), BAD_LINES.values(), ids=BAD_LINES.keys())
def test_a_bad_line_is_one_error_naming_file_line_and_field(
    trace_file: Path, line: dict[str, Any] | str, message: str
) -> None:
    write(trace_file, row(), line, row(hash_ids=[0, 2]))
    with pytest.raises(ValueError) as error:
        MooncakeTrace(trace_file)
    text = str(error.value)
    assert text.startswith(f"{trace_file}, line 2: {message}")
    assert "\n" not in text and len(text) < len(str(trace_file)) + 200
    skipping = MooncakeTrace(trace_file, on_error="skip")
    assert (len(skipping), skipping.skipped_lines) == (2, 1)
    assert [r.id for r in skipping] == [0, 1]


def test_bytes_that_are_no_text_are_a_bad_line(trace_file: Path) -> None:
    trace_file.write_bytes(b'{"timestamp": "\xff\xfe"}\n')
    with pytest.raises(ValueError, match=r"line 1: not UTF-8 \(byte 0xff at position 15\)"):
        MooncakeTrace(trace_file)


def test_a_skipped_line_sets_no_time_for_the_next(trace_file: Path) -> None:
    write(trace_file, row(), row(timestamp=9000, output_length=0), row(timestamp=2000))
    trace = MooncakeTrace(trace_file, on_error="skip")
    assert [r.arrival for r in trace] == [1.0, 2.0]


@pytest.mark.parametrize(
    ("lines", "on_error", "message"),
    [
        ([], "raise", r"trace\.jsonl holds no requests; "),
        (["", ""], "raise", r"trace\.jsonl holds no requests; "),
        (["x", "y"], "skip", r"trace\.jsonl holds no requests \(2 bad lines were skipped\)"),
    ],
)
def test_a_file_without_requests(
    trace_file: Path, lines: list[str], on_error: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        MooncakeTrace(write(trace_file, *lines), on_error=on_error)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"limit": 0}, r"MooncakeTrace\.limit=0: a whole number of at least 1"),
        ({"limit": 2.0}, r"MooncakeTrace\.limit=2\.0: a whole number"),
        ({"speedup": 0}, r"MooncakeTrace\.speedup=0: a finite number above 0"),
        ({"speedup": float("nan")}, r"MooncakeTrace\.speedup=nan"),
        ({"block_size": 0}, r"MooncakeTrace\.block_size=0"),
        ({"on_error": "ignore"}, r"MooncakeTrace\.on_error='ignore': one of raise, skip"),
        ({"vocab": 1}, r"MooncakeTrace\.vocab=1"),
        ({"seed": -1}, r"MooncakeTrace\.seed=-1"),
    ],
)
def test_bad_parameters(trace_file: Path, parameters: dict[str, Any], message: str) -> None:
    write(trace_file, row())
    with pytest.raises(ValueError, match=message):
        MooncakeTrace(trace_file, **parameters)


def real_trace() -> Path:
    folder = data_folder()
    path = (folder or Path()) / "mooncake" / "conversation_trace.jsonl"
    if not path.is_file():
        pytest.skip("the Mooncake conversation trace is not in the data folder")
    return path


def test_the_published_conversation_trace() -> None:
    """Facts counted by independent programs: lengths, ids, and the hits of an infinite cache."""
    trace = MooncakeTrace(real_trace())
    assert (len(trace), trace.skipped_lines) == (12_031, 0)
    seen: set[int] = set()
    tokens = blocks = hit_blocks = hit_tokens = 0
    last_arrival = 0.0
    for request in trace:
        length = len(request.prompt)
        ids = (request.prompt[::512] // 512).tolist()
        tokens += length
        blocks += len(ids)
        run = next((i for i, block in enumerate(ids) if block not in seen), len(ids))
        hit_blocks += run
        hit_tokens += min(run * 512, length)
        seen.update(ids)
        assert request.arrival >= last_arrival
        last_arrival = request.arrival
    assert (tokens, blocks, len(seen)) == (144_793_823, 288_500, 182_790)
    assert (hit_blocks, hit_tokens) == (105_710, 54_098_411)
    assert last_arrival == 3536.999


def test_the_trace_is_found_by_its_name_in_the_data_folder() -> None:
    real_trace()
    first = next(iter(MooncakeTrace("mooncake/conversation_trace.jsonl", limit=1)))
    assert (len(first.prompt), first.max_new_tokens, first.arrival) == (6758, 500, 0.0)
    assert first.prompt.tolist() == list(range(6758))


def test_conversations_are_dealt_to_clients_in_shares_of_1_over_k(trace_file: Path) -> None:
    # Two clients have shares 2/3 and 1/3. Owed before each of the conversations 5, 6, 7, 8, 9:
    # (.67, .33) -> 1; (.33, .67) -> 2; (1, 0) -> 1; (.67, .33) -> 1; (.33, .67) -> 2.
    seconds = [5, 6, 5, 7, 8, 6, 9]
    write(trace_file, *(row(hash_ids=[0, second]) for second in seconds))
    clients = [request.client for request in MooncakeTrace(trace_file, clients=2)]
    assert clients == [f"client-{k}" for k in (1, 2, 1, 1, 1, 2, 2)]
    assert {request.client for request in MooncakeTrace(trace_file)} == {"default"}


def test_prompts_of_one_block_are_conversations_of_their_own(trace_file: Path) -> None:
    write(trace_file, *(row(input_length=512, hash_ids=[0]) for _ in range(3)))
    clients = [request.client for request in MooncakeTrace(trace_file, clients=2)]
    assert clients == ["client-1", "client-2", "client-1"]
