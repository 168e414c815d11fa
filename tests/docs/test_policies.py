"""docs/policies.md: its code runs as written, its tables are the source's."""

from __future__ import annotations

import doctest
import importlib
import re
import shlex
import sys
from pathlib import Path
from types import ModuleType

import pytest

from testbed import cli
from tests.docs.views_table import DOC, filled

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(*languages: str) -> list[tuple[int, str, str]]:
    """(line, language, text) of each code block."""
    text = DOC.read_text(encoding="utf-8")
    return [
        (text[: found.start()].count("\n") + 2, found[1], found[2])
        for found in BLOCK.finditer(text)
        if found[1] in languages
    ]


def test_every_block_is_of_a_kind_that_is_tested() -> None:
    kinds = {found[1] for found in BLOCK.finditer(DOC.read_text(encoding="utf-8"))}
    assert kinds <= {"python", "pycon", "sh", "toml"}


def test_the_code_does_what_it_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    # The conformance kit imports classes by their module's name.
    module = ModuleType("policies_of_the_docs")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    runner = doctest.DocTestRunner(verbose=False)
    for line, language, text in blocks("python", "pycon"):
        if language == "python":
            exec(compile("\n" * (line - 1) + text, str(DOC), "exec"), module.__dict__)
            continue
        test = doctest.DocTestParser().get_doctest(
            text, module.__dict__, f"line {line}", str(DOC), line
        )
        runner.run(test, clear_globs=False)
        module.__dict__.update(test.globs)
    assert runner.tries >= 8 and runner.failures == 0


def test_the_commands_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    # As if the package were installed.
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "shortest_prompt" / "src")])
    run = 0
    for _, _, text in blocks("sh"):
        for command in text.splitlines():
            words = shlex.split(command, comments=True)
            if words[:2] == ["testbed", "policy"]:
                importlib.invalidate_caches()
                sys.path_importer_cache.clear()
                assert cli.main(words[1:]) == 0, capsys.readouterr()
                run += 1
            else:
                assert words[:3] in (
                    ["pip", "install", "--editable"],
                    ["python", "-m", "pytest"],
                    ["python", "-m", "experiments.run"],
                ) or words[0].startswith("TESTBED_POLICIES=")
    assert run >= 3


def test_the_tables_are_the_source_s() -> None:
    text = DOC.read_text(encoding="utf-8")
    assert filled(text) == text, "run: python -m tests.docs.views_table"
