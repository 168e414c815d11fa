"""docs/programs.md: its Python runs as written, and every workload that it names exists."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from experiments.config import WORKLOADS
from testbed.core.source import RequestSource
from testbed.workloads.programs import ProgramFamily
from tests.workloads.programs.driving import drive

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "programs.md").read_text(encoding="utf-8")


def test_the_code_runs() -> None:
    names: dict[str, Any] = {"__name__": "programs_of_the_docs"}
    for block in re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL):
        # This file's `from __future__ import annotations` is not the page's.
        exec(compile(block, "docs/programs.md", "exec", dont_inherit=True), names)
    assert isinstance(names["requests"], RequestSource)
    requests = drive(names["DebatePrograms"](num_programs=2))
    # A hint, two speeches and a verdict each.
    assert len(requests) == 2 * 4
    assert max(len(request.prompt) for request in requests) == 200 + 40 + 2 * 150 + 1


def test_the_table_names_every_ready_program() -> None:
    rows = re.findall(r"^\| (`.*?`) \|", TEXT, re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    families = {name: family for name, (family, _) in WORKLOADS.items()}
    ready = {name for name, one in families.items() if issubclass(one, ProgramFamily)}
    assert ready <= named
