"""`testbed workload`: describe, convert and synthesize."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from testbed.cli import main
from testbed.workloads import FileWorkload, FittedWorkload, MooncakeTrace


def chat(i: int, **more: Any) -> dict[str, Any]:
    system = "You are a helpful assistant. Answer in one short sentence, and never guess."
    messages = [
        {"role": "system", "content": system},
        {"role": "user", "content": f"question number {i}, which is new"},
    ]
    return {"messages": messages, "user": f"u{i % 3}", "timestamp": 10 + i, "max_tokens": 7} | more


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log.jsonl"
    path.write_text("".join(f"{json.dumps(chat(i))}\n" for i in range(40)))
    return path


def test_describe_prints_a_page(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["workload", "describe", str(log), "--page-size", "4"]) == 0
    page = capsys.readouterr().out
    assert f"{log}: 40 requests, read as openai_chat" in page
    assert "skipped lines: 0; tokens: by stand-in" in page
    outputs = next(line for line in page.splitlines() if line.startswith("outputs"))
    assert outputs.split() == ["outputs", "280", "7", "7", "7", "7"]
    assert "arrivals: 1.00 per s over 39 s" in page
    assert "clients: 3" in page
    assert max(map(len, page.splitlines())) <= 200


def test_describe_as_json(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["workload", "describe", str(log), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["requests"], found["format"], found["skipped_lines"]) == (40, "openai_chat", 0)
    assert found["arrivals"]["cv"] == 0.0 and found["client_count"] == 3
    assert 0 < found["sharing"]["bound"] < 1


def test_bad_lines_stop_or_are_counted(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log.write_text(f"{log.read_text()}{json.dumps(chat(40))[:50]}")
    for action in (["describe"], ["convert", "--to", "mooncake"], ["synthesize"]):
        out = [] if action == ["describe"] else [str(log.with_name("out"))]
        command = ["workload", action[0], str(log), *out, *action[1:]]
        assert main(command) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"error: {log}, line 41: not JSON") and error.count("\n") == 1
        assert "the file ends within this line" in error
        assert list(log.parent.iterdir()) == [log]
        assert main([*command, "--skip-bad-lines"]) == 0
        printed = capsys.readouterr().out
        assert "skipped lines: 1" in printed or "1 bad lines skipped" in printed
        log.with_name("out").unlink(missing_ok=True)


def test_convert_writes_what_can_be_read_again(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = log.with_name("trace.jsonl")
    assert (
        main(["workload", "convert", str(log), str(out), "--to", "mooncake", "--hash-block", "8"])
        == 0
    )
    printed = capsys.readouterr().out
    assert printed.startswith(f"40 requests written to {out}\n") and "left out" in printed
    original, copy = FileWorkload(log), MooncakeTrace(out, block_size=8)
    assert [len(r.prompt) for r in copy] == [len(r.prompt) for r in original]
    assert [r.arrival for r in copy] == [r.arrival for r in original]
    assert main(["workload", "convert", str(log), str(out), "--to", "openai_batch"]) == 0
    copy = FileWorkload(out)
    assert [r.prompt.tolist() for r in copy] == [r.prompt.tolist() for r in original]
    assert [r.client for r in copy] == [r.client for r in original]


def test_synthesize_writes_statistics_and_compares(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = log.with_name("statistics.json")
    command = ["workload", "synthesize", str(log), str(out), "--page-size", "4", "--compare"]
    assert main(command) == 0
    first, header, *rows = capsys.readouterr().out.splitlines()
    assert first == f"statistics of 40 requests written to {out}"
    assert header.split() == ["cache", "tokens", "LRU", "hit", "rate", "fitted"]
    # The largest request holds all that is shared: no cache that can serve it is too small.
    (size, rate, fitted_rate) = rows[0].split()
    assert len(rows) == 1 and int(size) % 4 == 0
    assert float(fitted_rate) == pytest.approx(float(rate), abs=0.05)
    assert len(FittedWorkload(out)) == 40 and "helpful" not in out.read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["describe", "nowhere.jsonl"], "nowhere.jsonl: no such file"),
        (["describe", "LOG", "--format", "csv"], "format='csv': one of mooncake"),
        (["describe", "LOG", "--page-size", "0"], "--page-size=0: 1 to 10000000 tokens"),
        (["describe", "LOG", "--tokenizer", "nowhere"], "tokenizer='nowhere': no such file"),
        (["convert", "LOG", "OUT", "--to", "csv"], "to='csv': one of mooncake, openai_batch"),
        (["convert", "LOG", "OUT", "--to", "mooncake", "--hash-block", "0"], "--hash-block=0: 1"),
        (["convert", "LOG", "OUT", "--to", "mooncake", "--output-tokens", "0"], "output_tokens=0"),
        (["synthesize", "LOG", "OUT", "--page-size", "-1"], "--page-size=-1: 1 to"),
        (["describe", "LOG", "--page-size", "99999999999"], "--page-size=99999999999: 1 to"),
        (["convert", "LOG", "LOG", "--to", "mooncake"], "it is the input, which would be lost"),
        (["synthesize", "LOG", "LOG"], "it is the input, which would be lost"),
        (["convert", "LOG", "FOLDER", "--to", "mooncake"], "it is a folder; the name of a file"),
        (["describe", "FOLDER"], "it is a folder; the name of a file is needed"),
    ],
)
def test_a_users_mistake_is_one_line(
    log: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    places = {"LOG": str(log), "OUT": str(log.with_name("out")), "FOLDER": str(log.parent)}
    before = log.read_text()
    assert main(["workload", *(places.get(a, a) for a in arguments)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and message in error and error.count("\n") == 1
    assert list(log.parent.iterdir()) == [log] and log.read_text() == before


def test_the_output_is_looked_at_before_the_input_is_read(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log.write_text("{broken\n")
    link = log.with_name("link")
    link.symlink_to(log)
    for action in (
        ["convert", str(log), str(link), "--to", "mooncake"],
        ["synthesize", *2 * [str(log)]],
    ):
        assert main(["workload", *action]) == 2
        assert "it is the input" in capsys.readouterr().err
    assert log.read_text() == "{broken\n"


def test_a_tokenizer_is_an_input_too(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer = log.with_name("tokenizer.json")
    tokenizer.write_text("{}")
    command = ["workload", "synthesize", str(log), str(tokenizer), "--tokenizer", str(tokenizer)]
    assert main(command) == 2
    assert "it is the input" in capsys.readouterr().err and tokenizer.read_text() == "{}"


@pytest.mark.parametrize(
    ("text", "to", "said"),
    [
        ('{"prompt": "a b", "output_len": 1}', "openai_batch", "mean nothing to a model"),
        ('{"prompt": [1, 2], "output_len": 1}', "openai_batch", None),
        ('{"prompt": "a b", "output_len": 1}', "mooncake", None),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n5,3,4", "mooncake", "lengths alone"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n5,3,4", "synthesize", "lengths alone"),
    ],
)
def test_what_is_made_up_is_said(
    log: Path, capsys: pytest.CaptureFixture[str], text: str, to: str, said: str | None
) -> None:
    log.write_text(f"{text}\n")
    out = str(log.with_name("out"))
    action = ["synthesize", str(log), out]
    assert (
        main(
            ["workload", *(action if to == "synthesize" else ["convert", *action[1:], "--to", to])]
        )
        == 0
    )
    printed = capsys.readouterr().out
    assert (said in printed) if said else ("made up" not in printed and "alone" not in printed)


def test_a_clients_name_cannot_break_the_table(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log.write_text(json.dumps(chat(0, user="a\x1b[2J\nb\u202e")) + "\n")
    assert main(["workload", "describe", str(log)]) == 0
    page = capsys.readouterr().out
    assert "  a\\x1b[2J\\x0ab\\x202e " in page and "\x1b" not in page
