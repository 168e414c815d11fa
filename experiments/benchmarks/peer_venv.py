"""Peers in virtual environments of their own, driven by the small scripts in peers/."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[2]
DRIVERS = Path(__file__).resolve().parent / "peers"


class PeerError(Exception):
    """A peer could not be installed or its driver failed; the message ends with its output."""


@dataclass(frozen=True)
class Peer:
    """Another project's release. requirements: for pip, installed without their dependencies,
    which would be gigabytes; what a driver's imports need is listed, the rest is stood in for."""

    name: str
    requirements: tuple[str, ...]

    def run(
        self, driver: str, arguments: Mapping[str, Any], home: Path = CHECKOUT / ".venv-peers"
    ) -> dict[str, Any]:
        """The JSON object that a driver prints last; the environment is made on demand."""
        process = subprocess.run(
            [str(self._interpreter(home)), str(DRIVERS / driver), json.dumps(arguments)],
            env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
            capture_output=True,
            text=True,
            check=False,
        )
        lines = process.stdout.splitlines()
        if process.returncode or not lines:
            output = (process.stdout + process.stderr)[-2000:]
            raise PeerError(f"{driver} in {self.name} exited {process.returncode}:\n{output}")
        result: dict[str, Any] = json.loads(lines[-1])
        return result

    def _interpreter(self, home: Path) -> Path:
        folder = home / self.name
        complete = folder / "INSTALLED"
        python = folder / "bin" / "python"
        wanted = "\n".join(self.requirements)
        if complete.is_file() and complete.read_text(encoding="utf-8") == wanted:
            return python
        print(f"installing {', '.join(self.requirements)} into {folder}", file=sys.stderr)
        shutil.rmtree(folder, ignore_errors=True)
        venv.create(folder, with_pip=True)
        pip = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "--no-deps"]
        install = subprocess.run(
            [*pip, *self.requirements], capture_output=True, text=True, check=False
        )
        if install.returncode:
            raise PeerError(f"{self.name}: pip failed:\n{install.stderr[-2000:]}")
        complete.write_text(wanted, encoding="utf-8")
        return python


SGLANG = Peer(
    "sglang",
    (
        "sglang==0.5.23",
        "torch==2.13.0",
        "filelock",
        "fsspec",
        "jinja2",
        "markupsafe",
        "mpmath",
        "msgspec",
        "networkx",
        "numpy",
        "orjson",
        "packaging",
        "psutil",
        "pyzmq",
        "setuptools",
        "sympy",
        "typing-extensions",
    ),
)
"""Its radix tree (the Rust core is its default) and its scheduling policies. The CPU build of torch
is enough; where the package index serves a CUDA build, install the CPU build there by hand."""

VIDUR = Peer(
    "vidur",
    (
        "vidur==0.0.26",
        "ddsketch",
        "numpy",
        "pandas>=2.2,<3",
        "protobuf",
        "python-dateutil",
        "pytz",
        "simpy",
        "six",
        "tzdata",
    ),
)
"""The discrete-event simulator of MLSys'24."""

DYNAMO = Peer("dynamo", ("ai-dynamo==1.3.1", "ai-dynamo-runtime==1.3.1"))
"""NVIDIA's mocker in Rust, replaying a trace offline."""
