"""What commands import: nothing of the engine unless they drive it, and little to print help."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from testbed.cli import COMMANDS

from .conftest import MOONCAKE_ROWS, Command

ROOT = Path(__file__).resolve().parents[2]
ENGINES_OWN = {"calibrate", "model", "validate"}
SPY = """
import sys
HEAVY = {"torch", "triton", "transformers", "testbed_kernels"}
asked = []
class Spy:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in HEAVY or name.startswith("testbed.engine"):
            asked.append(name)
sys.meta_path.insert(0, Spy())
from {module} import main
try:
    status = main()
except SystemExit as end:
    status = end.code
print("status", status, "asked for", asked, file=sys.stderr)
"""


def spied(*arguments: str | Path, module: str = "testbed.cli") -> str:
    """The last line that the module's command, run by itself, leaves on standard error."""
    program = SPY.replace("{module}", module)
    command = [sys.executable, "-c", program, *map(str, arguments)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return run.stderr.splitlines()[-1]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in MOONCAKE_ROWS))
    return path


def test_simulator_commands_leave_torch_alone(command: Command, log: Path, tmp_path: Path) -> None:
    command("-m", "scheduler=fcfs,lpm")
    sweep = tmp_path / "out"
    tried = [
        ("compare", sweep),
        ("report", sweep, "-o", tmp_path / "report.html"),
        ("policy", "list"),
        ("policy", "new", "mine", "--into", tmp_path),
        ("workload", "describe", log),
        ("advise", log),
        ("miss-ratio", log),
        ("prefix-cost", "1000"),
        ("doctor",),
    ]
    for arguments in tried:
        assert spied(*arguments) == "status 0 asked for []", arguments
    # Both backends are looked at only where the engine is there.
    assert spied("policy", "check", "no_such") == "status 2 asked for []"
    names = {module.__name__.rpartition(".")[2].replace("_", "-") for module in COMMANDS}
    assert names == {str(arguments[0]) for arguments in tried} | ENGINES_OWN


def test_an_experiment_leaves_torch_alone(tmp_path: Path) -> None:
    small = ("workload.num_requests=12", f"output={tmp_path}")
    assert spied("scheduler=lpm", *small, module="experiments.run") == "status 0 asked for []"


def test_help_needs_no_torch() -> None:
    assert spied("--help") == "status 0 asked for []"
    for name in ENGINES_OWN:
        assert spied(name, "--help") == "status 0 asked for []"
