"""docs/workloads.md names what there is, and its command lines are accepted."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from testbed.cli import main
from testbed.workloads.formats import FORMATS
from testbed.workloads.formats.origin import CLIENT_NAMES, SESSION_NAMES, TIME_NAMES

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "workloads.md").read_text()


def test_every_format_and_name_is_on_the_page() -> None:
    assert re.findall(r"^\| `(\w+)` \|", PAGE, re.M) == [*FORMATS]
    for name in (*CLIENT_NAMES, *SESSION_NAMES, *TIME_NAMES):
        assert f"`{name}`" in PAGE


@pytest.mark.parametrize("command", re.findall(r"^    testbed (workload .*)$", PAGE, re.M))
def test_its_commands_run(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chat = {"messages": [{"role": "user", "content": "hello there"}], "max_tokens": 3}
    (tmp_path / "chats.jsonl").write_text(f"{json.dumps(chat)}\n" * 3)
    monkeypatch.chdir(tmp_path)
    assert main(shlex.split(command)) == 0
