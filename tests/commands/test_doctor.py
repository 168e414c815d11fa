"""`testbed doctor`: what it finds, and that only a broken core is an error."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from testbed.cli import main
from testbed.commands import doctor

PROJECT = {
    "version": "1.0",
    "requires-python": ">=3.11",
    "dependencies": ["numpy>=2.0", "pandas<1"],
    "optional-dependencies": {
        "engine": ["no-such-package>=3", "numpy>=1"],
        "elsewhere": ["no-such-package; sys_platform == 'nowhere'"],
    },
}


@pytest.fixture
def project(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """A made-up project, a simulator that works, no torch, no data."""
    table: dict[str, Any] = {**PROJECT}
    monkeypatch.setattr(doctor, "_project", lambda: table)
    monkeypatch.setattr(doctor, "SIMULATOR", "")
    monkeypatch.setattr(doctor, "GPU", "print('no JSON')")
    monkeypatch.setenv("TESTBED_DATA", str(tmp_path))
    return table


def test_missing_extras_and_odd_versions_are_told_and_are_no_error(
    project: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "azure").mkdir()
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "simulator  works" in out
    assert f"unsupported: pandas {metadata.version('pandas')}; <1 is needed" in out
    assert "missing: no-such-package>=3" in out and "pip install 'radix-testbed[engine]'" in out
    assert "elsewhere  elsewhere: installed" in out
    assert f"data       {tmp_path}" in out
    assert "found    azure" in out and "missing  mooncake/conversation_trace.jsonl" in out


def test_json_says_the_same(project: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["working"] and found["version"] == "1.0"
    numpy = {"name": "numpy", "wanted": ">=2.0", "supported": True}
    assert found["core"][0] == {**numpy, "version": metadata.version("numpy")}
    assert found["extras"]["engine"]["complete"] is False
    assert found["extras"]["elsewhere"] == {"feature": "", "complete": True, "packages": []}


def test_a_missing_core_package_is_status_1(
    project: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    project["dependencies"] = ["no-such-package>=3"]
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "simulator  BROKEN" in out and "missing: no-such-package>=3" in out


def test_a_simulator_that_does_not_start_is_status_1(
    project: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "SIMULATOR", "import no_such_module")
    assert main(["doctor"]) == 1
    assert "ModuleNotFoundError: No module named 'no_such_module'" in capsys.readouterr().out


def test_a_data_folder_that_is_not_there_is_named(
    project: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TESTBED_DATA", "nowhere")
    assert main(["doctor"]) == 0
    assert "TESTBED_DATA='nowhere': the path of an existing folder is needed" in (
        capsys.readouterr().out
    )


@pytest.mark.parametrize(
    ("devices", "error", "text"),
    [
        ([], None, "none that torch 2.13.0 finds"),
        ([], "CUDA driver too old", "not usable: CUDA driver too old"),
        (
            [{"name": "H200", "memory_bytes": 139 * 2**30, "compute_capability": "9.0"}],
            None,
            "usable: H200, 139 GiB, compute capability 9.0 (torch 2.13.0)",
        ),
    ],
)
def test_a_gpu_is_what_torch_says_in_a_process_of_its_own(
    project: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    devices: list[dict[str, Any]],
    error: str | None,
    text: str,
) -> None:
    answer = {"torch": "2.13.0", "cuda": "13.0", "devices": devices, "error": error}
    monkeypatch.setattr(doctor, "GPU", f"print({json.dumps(answer)!r})")
    monkeypatch.setattr(metadata, "version", lambda name: "2.13.0")
    assert main(["doctor"]) == 0
    assert f"gpu        {text}" in capsys.readouterr().out
    assert main(["doctor", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["gpu"]["usable"] is bool(devices)


def test_the_metadata_of_an_installed_package_serves_where_there_is_no_checkout(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    described = metadata.metadata("pytest")
    monkeypatch.setattr(doctor, "__file__", str(tmp_path / "a" / "b" / "doctor.py"))
    monkeypatch.setattr(doctor, "NAME", "pytest")
    project = doctor._project()
    assert project["version"] == described["Version"]
    assert any(text.startswith("pluggy") for text in project["dependencies"])
    assert any(text.startswith("hypothesis") for text in project["optional-dependencies"]["dev"])
    assert not any(text.startswith("hypothesis") for text in project["dependencies"])


def test_it_imports_no_torch_itself() -> None:
    program = (
        "import sys; from testbed.commands import doctor; doctor.GPU = 'print(1)'; "
        "doctor.examine(); print('torch' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert run.stdout.strip() == "False", run.stderr


def test_every_extra_says_what_it_is_for() -> None:
    assert set(doctor._project()["optional-dependencies"]) <= set(doctor.FEATURES)
