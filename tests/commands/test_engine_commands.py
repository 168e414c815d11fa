"""Commands that run the engine, where torch is not installed."""

from __future__ import annotations

import sys

import pytest

from testbed.cli import main


@pytest.mark.parametrize("command", ["validate", "calibrate"])
def test_without_torch_they_say_what_to_install(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main([command]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == "error: torch is not installed: pip install 'radix-testbed[engine]'\n"


@pytest.mark.parametrize("text", ["0", "-3", "many"])
def test_counts_are_whole_numbers_from_1(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["validate", "--page-size", text])
    assert stopped.value.code == 2
    assert f"'{text}': a whole number from 1 on is needed" in capsys.readouterr().err
