from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from testbed.core.request import Request
from testbed.metrics.bounds import clairvoyant_bound, sharing_bound
from testbed.metrics.prompt_paths import prompt_paths
from testbed.workloads import FileWorkload, MooncakeTrace, RagWorkload, Retimed
from testbed.workloads.arrivals import PoissonArrivals
from testbed.workloads.formats.writer import write_requests
from testbed.workloads.workload import Workload


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log.jsonl"


def write(path: Path, *entries: Any) -> Path:
    path.write_text("".join(f"{json.dumps(entry)}\n" for entry in entries))
    return path


def shown(request: Request) -> tuple[Any, ...]:
    output = None if request.output is None else request.output.tolist()
    return (request.id, request.prompt.tolist(), output, request.arrival, request.client)


def test_requests_of_token_ids(log: Path) -> None:
    entries = [
        {"prompt": [1, 2], "output_len": 3, "timestamp": 100, "user": "a", "session_id": "s"},
        {"prompt": [1, 3], "output_tok_ids": [9], "timestamp": 104.5},
    ]
    workload = FileWorkload(write(log, *entries), speedup=3)
    first, second = workload
    assert shown(first)[:2] + shown(first)[3:] == (0, [1, 2], 0.0, "a")
    assert (first.max_new_tokens, first.program, first.turn) == (3, "s", 0)
    assert shown(second) == (1, [1, 3], [9], 1.5, "default")
    assert (len(workload), workload.skipped_lines, workload.name) == (2, 0, "file")
    assert [shown(r) for r in workload] == [shown(first), shown(second)]


def test_logged_outputs_are_found_in_the_next_prompt(log: Path) -> None:
    turns = [
        {"from": who, "value": f"{who} says something {i}"}
        for i in range(4)
        for who in ("human", "gpt")
    ]
    requests = list(FileWorkload(write(log, {"id": "x", "conversations": turns})))
    assert [r.turn for r in requests] == [0, 1, 2, 3]
    for earlier, later in pairwise(requests):
        assert earlier.output is not None
        known = [*earlier.prompt.tolist(), *earlier.output.tolist()]
        assert later.prompt.tolist()[: len(known)] == known


def test_lengths_alone_share_nothing(log: Path) -> None:
    log.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.50,4,2\n2023-11-16 18:15:48.00,3,1\n"
    )
    first, second = FileWorkload(log)
    assert (first.prompt.tolist(), second.prompt.tolist()) == ([0, 1, 2, 3], [4, 5, 6])
    assert (first.arrival, second.arrival) == (0.0, 1.5)
    mixed = [r.prompt for r in FileWorkload(log, vocab=10)]
    assert max(tokens.max() for tokens in mixed) < 10


def test_the_length_of_outputs_that_the_file_does_not_tell(log: Path) -> None:
    write(log, {"prompt": "hello"}, {"prompt": "hello", "output_len": 2})
    with pytest.raises(ValueError, match="line 1: no length of the output; set output_tokens"):
        FileWorkload(log)
    skipping = FileWorkload(log, on_error="skip")
    assert (len(skipping), skipping.skipped_lines) == (1, 1)
    assert [r.max_new_tokens for r in FileWorkload(log, output_tokens=7)] == [7, 2]


def timed(*times: float | None) -> list[dict[str, Any]]:
    return [
        {"prompt": [i], "output_len": 1} | ({} if time is None else {"timestamp": time})
        for i, time in enumerate(times)
    ]


@pytest.mark.parametrize(
    ("times", "message", "left"),
    [
        ((1, 3, 2), r"line 3: arrival 2\.0+ is before 3\.0+, that of line 2; lines in order", 2),
        ((1, None), "line 2: no arrival time, unlike line 1; all requests need one, or none", 1),
        ((None, 1), "line 2: an arrival time, unlike line 1", 1),
    ],
)
def test_times_that_do_not_go_together(
    log: Path, times: tuple[float | None, ...], message: str, left: int
) -> None:
    write(log, *timed(*times))
    with pytest.raises(ValueError, match=message):
        FileWorkload(log)
    skipping = FileWorkload(log, on_error="skip")
    assert (len(list(skipping)), skipping.skipped_lines) == (left, 1)
    assert [r.id for r in skipping] == list(range(left))


def test_a_limit_leaves_the_rest_unread(log: Path) -> None:
    write(log, *timed(1, 2, 3))
    log.write_text(f"{log.read_text()}broken")
    assert len(list(FileWorkload(log, limit=2))) == len(FileWorkload(log, limit=3)) - 1 == 2
    with pytest.raises(ValueError, match="line 4"):
        FileWorkload(log)


def test_a_file_without_a_good_line(log: Path) -> None:
    write(log, {"prompt": ""}, {"prompt": []})
    with pytest.raises(ValueError, match=r"holds no requests \(2 bad lines were skipped\)"):
        FileWorkload(log, on_error="skip")


def test_ids_beyond_the_vocab_are_an_error(log: Path) -> None:
    write(log, {"prompt": [5, 80], "output_len": 1})
    with pytest.raises(ValueError, match=r"FileWorkload\.vocab=80: line 1 of .* holds token id 80"):
        FileWorkload(log, vocab=80)
    with pytest.raises(ValueError, match="holds token id 80"):
        FileWorkload(write(log, {"prompt": [5], "output_tok_ids": [80]}), vocab=80)
    write(log, {"prompt": [5, 80], "output_len": 1})
    assert next(iter(FileWorkload(log, vocab=81))).prompt.tolist() == [5, 80]


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"output_tokens": 0}, r"FileWorkload\.output_tokens=0: a whole number of at least 1"),
        ({"limit": 0}, r"FileWorkload\.limit=0"),
        ({"speedup": -1}, r"FileWorkload\.speedup=-1"),
        ({"speedup": 1e-320}, r"FileWorkload\.speedup=1e-320"),
        ({"speedup": 10**400}, r"FileWorkload\.speedup=1000"),
        ({"block_size": 10**12}, r"FileWorkload\.block_size=1000000000000: .* to 10000000"),
        ({"on_error": "ignore"}, r"FileWorkload\.on_error='ignore'"),
        ({"block_size": 0}, r"FileWorkload\.block_size=0"),
        ({"format": "csv"}, r"format='csv': one of mooncake"),
    ],
)
def test_bad_parameters(log: Path, parameters: dict[str, Any], message: str) -> None:
    write(log, *timed(1))
    with pytest.raises(ValueError, match=message):
        FileWorkload(log, **parameters)


def small_workload() -> Workload:
    workload = RagWorkload(
        num_requests=60, documents=6, document_tokens=70, system_tokens=33, question_tokens=9
    )
    return Retimed(workload, PoissonArrivals(2.0))


def hits(workload: Workload, page_size: int, capacity: int | None) -> list[int]:
    paths = prompt_paths(workload, page_size)
    return clairvoyant_bound(paths, capacity).request_hit_tokens.tolist()


@pytest.mark.parametrize("block_size", [1, 16, 50])
def test_what_is_written_for_mooncake_hits_as_the_original(log: Path, block_size: int) -> None:
    original = small_workload()
    count = write_requests(original, log, "mooncake", block_size=block_size, model="")
    copies: list[Workload] = [
        MooncakeTrace(log, block_size=block_size),
        FileWorkload(log, block_size=block_size),
    ]
    assert count == 60
    for copy in copies:
        assert sharing_bound(prompt_paths(copy, block_size)) == sharing_bound(
            prompt_paths(original, block_size)
        )
        for capacity in (None, 600 // block_size):
            assert hits(copy, block_size, capacity) == hits(original, block_size, capacity)
        for a, b in zip(copy, original, strict=True):
            assert (len(a.prompt), a.max_new_tokens) == (len(b.prompt), b.max_new_tokens)
        offset = next(iter(copy)).arrival - round(next(iter(original)).arrival, 3)
        for a, b in zip(copy, original, strict=True):
            assert a.arrival == pytest.approx(round(b.arrival, 3) + offset)


def test_what_is_written_as_a_batch_is_the_same_prompts(log: Path) -> None:
    original = small_workload()
    write_requests(original, log, "openai_batch", block_size=1, model="llama")
    copy = FileWorkload(log)
    for a, b in zip(copy, original, strict=True):
        assert a.prompt.tolist() == b.prompt.tolist()
        assert (a.max_new_tokens, a.client, a.arrival) == (b.max_new_tokens, b.client, 0.0)
    line = json.loads(log.read_text().splitlines()[3])
    assert (line["custom_id"], line["method"], line["url"], line["body"]["model"]) == (
        "request-3",
        "POST",
        "/v1/completions",
        "llama",
    )
    assert sharing_bound(prompt_paths(copy, 16)) == sharing_bound(prompt_paths(original, 16))


def test_ids_of_a_mooncake_file_by_hand(log: Path) -> None:
    write(
        log,
        *(
            {"prompt": p, "output_len": 1}
            for p in ([1, 2, 3], [1, 2], [1, 2, 3], [9, 3], [1, 2, 3, 4])
        ),
    )
    write_requests(FileWorkload(log), log, "mooncake", block_size=2, model="")
    ids = [json.loads(line)["hash_ids"] for line in log.read_text().splitlines()]
    # A partial block of the same tokens is the same; the whole block that begins with it is not.
    assert ids == [[0, 1], [0], [0, 1], [2], [0, 3]]


def test_a_write_that_fails_leaves_the_old_file(log: Path) -> None:
    log.write_text("old")

    def failing() -> Any:
        yield from list(small_workload())[:3]
        raise ValueError("half way")

    with pytest.raises(ValueError, match="half way"):
        write_requests(failing(), log, "mooncake", block_size=16, model="")
    assert log.read_text() == "old" and [p.name for p in log.parent.iterdir()] == [log.name]
    with pytest.raises(ValueError, match="to='csv': one of mooncake, openai_batch"):
        write_requests(small_workload(), log, "csv", block_size=16, model="")
    with pytest.raises(ValueError, match="no requests to write"):
        write_requests([], log, "mooncake", block_size=16, model="")


def test_more_lengths_than_there_are_token_ids_are_refused_at_once(log: Path) -> None:
    rows = "5,10000000,1\n" * 215
    log.write_text(f"req_time_s,prompt_len,output_len,client\n{rows}".replace(",1\n", ",1,a\n"))
    # 2 ** 31 is 214.7 times ten million; the rows begin in line 2.
    with pytest.raises(ValueError, match=r"line 216 of .*: more than 2147483648 prompt tokens"):
        FileWorkload(log)
    assert len(FileWorkload(log, limit=214)) == 214


def test_a_tokenizer_with_more_ids_than_the_vocab(log: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    model = tokenizers.models.WordLevel({"hi": 7, "[UNK]": 0}, unk_token="[UNK]")
    file = log.with_name("tokenizer.json")
    tokenizers.Tokenizer(model).save(str(file))
    write(log, {"prompt": "hi", "output_len": 1})
    with pytest.raises(ValueError, match=r"FileWorkload\.vocab=7: .* token ids up to 7"):
        FileWorkload(log, tokenizer=str(file), vocab=7)
    (request,) = FileWorkload(log, tokenizer=str(file), vocab=8)
    assert request.prompt.tolist() == [7]


@pytest.mark.parametrize("count", [1, 3, 9])
def test_the_logs_own_count_of_output_tokens_has_precedence(log: Path, count: int) -> None:
    chat = {"messages": [{"role": "user", "content": "hi"}], "response": "one two three"}
    (counted,) = FileWorkload(write(log, chat))
    assert counted.output is not None and counted.max_new_tokens == 3
    write(log, chat | {"usage": {"completion_tokens": count}})
    for _ in range(2):
        (request,) = FileWorkload(log, vocab=None)
        assert request.output is not None
        assert request.max_new_tokens == len(request.output) == count
        kept = min(count, 3)
        assert request.output[:kept].tolist() == counted.output[:kept].tolist()


@pytest.mark.parametrize(
    ("line", "made_up"),
    [
        ('{"prompt": "text", "output_len": 1}', True),
        ('{"prompt": [1], "output_len": 1}', False),
        ('{"timestamp": 0, "input_length": 5, "output_length": 3, "hash_ids": [0]}', True),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n5,3,4", True),
    ],
)
def test_whose_token_ids_are_made_up(log: Path, line: str, made_up: bool) -> None:
    log.write_text(f"{line}\n")
    assert FileWorkload(log).ids_are_made_up is made_up
