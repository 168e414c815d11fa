"""Pages of the site that are made from the code whenever it is built: a hook of mkdocs.yml."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from testbed.cli import COMMANDS
from testbed.core.records import (
    ADDED_COLUMNS,
    DECISION_COLUMNS,
    MEASURED_COLUMNS,
    REQUEST_COLUMNS,
    STEP_COLUMNS,
    Column,
)
from testbed.metrics.summary import SUMMARY_COLUMNS

ROOT = Path(__file__).resolve().parents[1]
WIDTH = "80"
"""Columns of the help texts, which argparse takes from the environment."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages; called by MkDocs."""
    pages = {
        "reference/cli.md": cli_page(),
        "reference/options.md": options_page(),
        "reference/records.md": records_page(),
        "reference/summary.md": summary_page(),
    }
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))
    return files


def cli_page() -> str:
    """The help of `testbed` and of everything below it."""
    parts = ["# The `testbed` command", "Made from the parsers that the command itself uses."]
    for name, parser in parsers():
        parts += [f"## {name}", fenced(_help(parser))]
    return "\n\n".join(parts) + "\n"


def parsers() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Every command with its parser, each before the commands below it."""
    root = argparse.ArgumentParser(prog="testbed")
    commands = root.add_subparsers(required=True, metavar="COMMAND")
    for command in COMMANDS:
        command.add(commands)
    for parser in commands.choices.values():
        yield from _below(parser)


def _below(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    yield parser.prog, parser
    for action in parser._actions:
        # argparse has no public way to ask a parser for its commands.
        if isinstance(action, argparse._SubParsersAction):
            for one in action.choices.values():
                yield from _below(one)


def _help(parser: argparse.ArgumentParser) -> str:
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = WIDTH
    try:
        return parser.format_help()
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before


def options_page() -> str:
    """What `python -m experiments.run --help` prints."""
    shown = subprocess.run(
        [sys.executable, "-m", "experiments.run", "--help"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    groups, _, config = shown.partition("== Config ==")
    choices = [
        line.partition(": ")
        for line in groups.splitlines()
        if ": " in line and not line.startswith("Compose")
    ]
    config = config.partition("\n\n")[2].partition("\n\nPowered by")[0]
    parts = [
        "# Options of an experiment",
        "What `python -m experiments.run --help` prints. `GROUP=CHOICE` takes a choice, "
        "`GROUP.OPTION=VALUE` sets an option of it, and `-m` runs every combination of values that "
        "are listed with commas. The options of a choice are those of its class, in "
        "[policies](policies.md) and [workloads](workloads.md); "
        "`python -m experiments.run GROUP=CHOICE --cfg job` prints them.",
        "## Choices",
        "\n".join(f"- **{group}**: {names}" for group, _, names in choices),
        "## The defaults",
        fenced(config, "yaml"),
    ]
    return "\n\n".join(parts) + "\n"


def records_page() -> str:
    """The columns of a run folder's tables."""
    parts = [
        "# Files of a run",
        "A run is a folder: `config.yaml` (every option, resolved), `manifest.json` (commit, "
        "versions, machine, seed, overrides, counters), `summary.json` ([its values](summary.md)), "
        "the tables below as Parquet, and `COMPLETE`, written last. `testbed.load(FOLDER)` reads "
        "one run or a sweep; each table is an attribute of what it returns, with a column `run` in "
        "front. Times are seconds, lengths are tokens.",
    ]
    tables: dict[str, tuple[str, Mapping[str, Column]]] = {
        "requests": ("A row for each request that left.", REQUEST_COLUMNS),
        "steps": (
            "A row for each step of a replica; none with `record.steps=false`.",
            STEP_COLUMNS,
        ),
        "decisions": (
            "What the scheduler decided, in order; only with `record.decisions=true`, and of "
            "engine runs.",
            DECISION_COLUMNS,
        ),
        "added": ("Of engine runs: what a replay serves again.", ADDED_COLUMNS),
        "measured": ("Of engine runs: a row for each step, as it was timed.", MEASURED_COLUMNS),
    }
    for name, (what, schema) in tables.items():
        rows = [(f"`{key}`", f"`{column.dtype}`", column.doc) for key, column in schema.items()]
        parts += [f"## {name}.parquet", what, table(("column", "type", "meaning"), rows)]
    return "\n\n".join(parts) + "\n"


def summary_page() -> str:
    """The values of summary.json."""
    rows = [(f"`{name}`", meaning) for name, meaning in SUMMARY_COLUMNS.items()]
    parts = [
        "# Values of a run",
        "What `summary.json` holds, `testbed.load(FOLDER).summary` has in its columns, and "
        "`testbed compare --metric` takes. The formulas are in "
        "[metrics](../explanation/metrics.md).",
        table(("name", "meaning"), rows),
    ]
    return "\n\n".join(parts) + "\n"


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """A Markdown table; bars inside cells are escaped."""
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines
    )


def fenced(text: str, language: str = "text") -> str:
    """A code block."""
    return f"```{language}\n{text.strip()}\n```"
