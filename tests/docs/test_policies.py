"""docs/policies.md: its code runs as written, its tables are the source's."""

from __future__ import annotations

import doctest
import importlib
import re
import shlex
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest

from testbed import cli, conformance
from testbed.conformance.battery import battery
from testbed.conformance.kit import examine
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


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[list[str]]]:
    """The words of each `testbed policy` command, to be run in an empty folder."""
    monkeypatch.chdir(tmp_path)
    # As if the package were installed.
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "shortest_prompt" / "src")])
    lines = [line for _, _, text in blocks("sh") for line in text.splitlines()]
    yield [
        words[1:]
        for words in (shlex.split(line, comments=True) for line in lines)
        if words[:2] == ["testbed", "policy"]
    ]
    sys.modules.pop("shortest_prompt", None)


def run_all(commands: list[list[str]]) -> None:
    assert len(commands) >= 3
    for words in commands:
        importlib.invalidate_caches()
        sys.path_importer_cache.clear()
        assert cli.main(words) == 0, words


def test_every_other_command_is_one_that_exists() -> None:
    for _, _, text in blocks("sh"):
        for command in text.splitlines():
            words = shlex.split(command, comments=True)
            assert (
                words[:2] == ["testbed", "policy"]
                or words[:3]
                in (["pip", "install", "--editable"], ["python", "-m", "experiments.run"])
                or words[0].startswith("TESTBED_POLICIES=")
            )


def test_the_commands_run(commands: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    # The whole kit takes minutes; what it finds is not what the commands are tested for.
    small = partial(examine, cases=battery()[:2], checks=("survives", "read_only", "repeats"))
    monkeypatch.setattr(conformance, "examine", small)
    run_all(commands)


@pytest.mark.slow
def test_the_commands_find_no_fault(commands: list[list[str]]) -> None:
    run_all(commands)


def test_the_tables_are_the_source_s() -> None:
    text = DOC.read_text(encoding="utf-8")
    assert filled(text) == text, "run: python -m tests.docs.views_table"
