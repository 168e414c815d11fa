"""docs/how-to/serve.md: its Python runs as written, and prints what the page says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from testbed.engine.smollm2 import convert, install
from tests.engine.tiny_gguf import tiny_smollm2

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "serve.md"


def run_page() -> dict[str, Any]:
    """The names that its blocks define."""
    names: dict[str, Any] = {}
    text = PAGE.read_text(encoding="utf-8")
    for block in re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        exec(compile(block, str(PAGE), "exec", dont_inherit=True), names)
    return names


def test_the_code_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # In the model's place stands a tiny one with random weights and a token for each byte.
    convert(tiny_smollm2(tmp_path / "tiny.gguf")[0], tmp_path / "smollm2")
    monkeypatch.setenv("TESTBED_CACHE", str(tmp_path))
    names = run_page()
    *answers, engine, simulator = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in answers] == ["0", "1", "2", "11", "12", "20"]
    seen: set[tuple[int, ...]] = set()
    hits = total = 0
    for request in names["requests"]:
        prompt = request.prompt.tolist()
        pages = [tuple(prompt[:end]) for end in range(16, len(prompt) + 1, 16)]
        # One token at least is computed.
        hits += sum(16 for page in pages if page in seen and len(page) < len(prompt))
        total += len(prompt)
        seen.update(pages)
    assert hits > 0
    assert engine == f"hit rate {hits / total:.3f}"
    assert simulator == f"{engine}, simulated"
    outputs = names["run"].outputs
    assert len(outputs[11]) == len(outputs[12]) == 24
    assert outputs[11].tolist() != outputs[12].tolist()


@pytest.mark.slow
def test_the_model_answers(capsys: pytest.CaptureFixture[str]) -> None:
    install(lambda line: None)
    run_page()
    *answers, engine, simulator = capsys.readouterr().out.splitlines()
    assert "Paris" in answers[0]
    assert simulator == f"{engine}, simulated"
