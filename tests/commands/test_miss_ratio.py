from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from testbed.cli import main


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Token ids: 1 2 3, 1 4, 1 2 3; and 5, which nobody repeats."""
    path = tmp_path / "requests.jsonl"
    prompts = [[1, 2, 3], [1, 4], [1, 2, 3], [5]]
    path.write_text("".join(json.dumps(prompt) + "\n" for prompt in prompts))
    return path


def test_lru_and_a_simulation_of_it_agree(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of nine tokens, three hit with three pages, and four with four (see the curve's own test)."""
    table = tmp_path / "out" / "curve.csv"
    arguments = [str(file), "--page-size", "1", "--eviction", "lru", "fifo", "--csv", str(table)]
    assert main(["miss-ratio", *arguments]) == 0
    shown = capsys.readouterr().out
    assert "4 requests, one at a time, pages of 1 tokens" in shown
    assert "sharing bound, any order and capacity: 0.444" in shown
    assert "LRU needs 4 tokens to hit all it can" in shown
    rows = pd.read_csv(table)
    assert rows["cache tokens"].tolist() == [3, 4]
    assert rows["lru"].tolist() == pytest.approx([3 / 9, 4 / 9], abs=1e-6)
    assert rows["lru (simulated)"].tolist() == rows["lru"].tolist()
    assert (rows["clairvoyant"] >= rows["fifo (simulated)"]).all()


def test_sizes_can_be_chosen(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["miss-ratio", str(file), "--page-size", "1", "--tokens", "100", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = [line.split() for line in lines[2:4]]
    assert rows == [["3", "0.333", "0.333"], ["100", "0.444", "0.444"]]


def test_a_trace_whose_hash_ids_name_sixteen_tokens(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What `workload convert --hash-block 16` writes: 32 tokens shared of 3 * 48."""
    chats, trace = tmp_path / "prompts.jsonl", tmp_path / "trace.jsonl"
    prompts = [[*range(32), *range(100 * i, 100 * i + 16)] for i in range(1, 4)]
    chats.write_text("".join(f"{json.dumps(prompt)}\n" for prompt in prompts))
    convert = ["workload", "convert", str(chats), str(trace), "--to", "mooncake"]
    assert main([*convert, "--hash-block", "16", "--output-tokens", "1"]) == 0
    capsys.readouterr()
    assert main(["miss-ratio", str(trace), "--block-size", "16"]) == 0
    assert f"any order and capacity: {2 * 32 / (3 * 48):.3f}" in capsys.readouterr().out
    assert main(["miss-ratio", str(trace)]) == 2
    assert "512 tokens" in capsys.readouterr().err


def test_lengths_alone_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "azure.csv"
    file.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n"
    )
    assert main(["miss-ratio", str(file)]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(f"error: {file}: it holds lengths alone")
    assert shown.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tokens", "2", "--page-size", "1"], "--tokens=2: at least 3 are needed"),
        (["--page-size", "0"], "--page-size=0"),
        (["--block-size", "0"], "--block-size=0"),
        (["--eviction", "best"], "best"),
    ],
)
def test_mistakes(
    file: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["miss-ratio", str(file), *arguments]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("error: ") and message in shown.err
