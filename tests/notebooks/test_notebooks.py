"""Each notebook is a pair in step, holds no output, runs top to bottom and shows a figure."""

from __future__ import annotations

import os
import re
import warnings
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nbclient", reason="the extra `notebooks` is not installed")
jupytext = pytest.importorskip("jupytext", reason="the extra `notebooks` is not installed")
pytest.importorskip("ipykernel", reason="the extra `notebooks` is not installed")

import nbformat  # noqa: E402
from nbclient import NotebookClient  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "notebooks"
NAMES = sorted(path.stem for path in FOLDER.glob("*.py"))
ASKED = (
    "fairness",
    "prompt_ordering",
    "quick_start",
    "reading_results",
    "simulator_and_engine",
    "write_a_policy",
)
SECONDS = 300
"""After which a cell that hangs is given up."""


def read(name: str) -> Any:
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


def test_each_notebook_has_both_halves() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.ipynb")) == NAMES
    assert set(ASKED) <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_the_halves_are_in_step(name: str) -> None:
    halves = (read(name), jupytext.read(FOLDER / f"{name}.py"))
    left, right = ([(cell.cell_type, cell.source) for cell in half.cells] for half in halves)
    assert left == right, f"jupytext --sync notebooks/{name}.py"


@pytest.mark.parametrize("name", NAMES)
def test_it_holds_no_output(name: str) -> None:
    for cell in read(name).cells:
        assert not cell.get("outputs"), f"{name}: an output of {cell.source[:60]!r}"
        assert cell.get("execution_count") is None


@pytest.mark.parametrize("name", NAMES)
def test_it_begins_with_what_a_user_says(name: str) -> None:
    first = read(name).cells[0]
    assert first.cell_type == "markdown"
    assert re.match(r"# .+\n\n> \*.+\*\n", first.source, re.DOTALL)


@pytest.mark.parametrize("name", NAMES)
def test_it_runs_and_ends_in_a_figure(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What notebooks write goes to temporary folders, which then are this test's.
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    paths = [str(ROOT), str(ROOT / "kernels"), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    notebook = read(name)
    before = {path: path.stat().st_mtime_ns for path in FOLDER.rglob("*")}
    with warnings.catch_warnings():
        # Of the Jupyter packages among themselves.
        warnings.simplefilter("ignore")
        NotebookClient(
            notebook,
            timeout=SECONDS,
            kernel_name="python3",
            resources={"metadata": {"path": str(FOLDER)}},
        ).execute()
    codes = [cell for cell in notebook.cells if cell.cell_type == "code"]
    pictures = [
        output
        for output in codes[-1].outputs
        if output.output_type in ("execute_result", "display_data") and "image/png" in output.data
    ]
    assert len(pictures) == 1
    said = [output.text for cell in codes for output in cell.outputs if "text" in output]
    assert not re.search(r"^error:|Traceback", "".join(said), re.MULTILINE)
    assert before == {path: path.stat().st_mtime_ns for path in FOLDER.rglob("*")}
