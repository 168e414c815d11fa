from __future__ import annotations

import io

import pytest

from experiments import progress

from .conftest import Command


def test_a_log_gets_lines_without_control_characters(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "DELAY_S", 0.0)
    with progress.ProgressBar(30, "a run") as bar:
        bar.show(10)
        bar.show(30)
    shown = capsys.readouterr().err
    assert "a run: 30 of 30 requests" in shown
    assert all(line.startswith("a run: ") for line in shown.splitlines())
    assert not set(shown) & {"\r", "\x1b"}


def test_a_run_of_programs_counts_programs(
    monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    monkeypatch.setattr(progress, "DELAY_S", 0.0)
    shown = command("workload=judge", "workload.num_programs=3", small=False).err
    assert "3 of 3 programs" in shown
    assert "requests" not in shown


def test_a_short_run_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.ProgressBar(30, "a run") as bar:
        bar.show(30)
    assert capsys.readouterr().err == ""


def test_lines_drop_what_only_moves_the_cursor() -> None:
    stream = io.StringIO()
    lines = progress.Lines(stream)
    for text in ("\r", "\r 1 of 3  ", "\n", "", "\r 3 of 3"):
        lines.write(text)
    assert stream.getvalue() == "1 of 3\n3 of 3\n"
