"""docs/ordering.md: its Python does what it shows, and its command lines parse."""

from __future__ import annotations

import doctest
import re
import shlex
from pathlib import Path

import pytest

from testbed.cli import main

DOC = Path(__file__).resolve().parents[2] / "docs" / "ordering.md"


def test_the_code_does_what_it_shows() -> None:
    (code,) = re.findall(r"^```pycon\n(.*?)^```$", DOC.read_text(), re.MULTILINE | re.DOTALL)
    runner = doctest.DocTestRunner(verbose=False)
    runner.run(doctest.DocTestParser().get_doctest(code, {}, DOC.name, str(DOC), 0))
    assert runner.summarize(verbose=False).failed == 0


@pytest.mark.parametrize(
    "command",
    re.findall(r"^    testbed (prefix-cost (?!.*config\.json).*)$", DOC.read_text(), re.M),
)
def test_what_a_prefix_costs_is_what_the_page_says(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(shlex.split(command)) == 0
    shown = capsys.readouterr().out
    names = ("llama-3.1-8b", "as given")
    row = next(line for line in shown.splitlines() if line.startswith(names))
    assert row.split()[-5:] == ["250.0", "0.5%", "134", "401", "133"]
