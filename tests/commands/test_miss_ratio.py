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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tokens", "2", "--page-size", "1"], "--tokens=2: at least 3 are needed"),
        (["--page-size", "0"], "--page-size=0"),
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
