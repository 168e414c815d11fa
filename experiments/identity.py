"""What tells one run from another: what it reads, and what was set for it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from functools import lru_cache
from hashlib import file_digest, sha256
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from experiments.config import POLICY_GROUPS
from testbed.workloads import find_data_file


def run_name(overrides: Iterable[str]) -> str:
    """The name of a run's folder: 12 hex digits of what was set for it, whatever the order."""
    told = sorted(o for o in overrides if o.partition("=")[0] != "output")
    return sha256(",".join(told).encode()).hexdigest()[:12]


def digests(options: Mapping[str, Any]) -> dict[str, str]:
    """SHA-256 of what a run reads besides its options: a trace, step times, foreign policies.

    They are part of the config, so that a run is not taken for complete after one was edited.
    """
    files: dict[str, Path] = {}
    if "path" in options["workload"]:
        path = options["workload"]["path"]
        if not isinstance(path, str):
            raise ValueError(f"workload.path={path}: the name of a file is needed")
        files["workload"] = find_data_file(path)
    named = {"latency": options["latency"], "tokenizer": options["workload"].get("tokenizer")}
    # One that is missing is for its reader to name.
    files |= {name: Path(p) for name, p in named.items() if p is not None and Path(p).is_file()}
    for group in POLICY_GROUPS:
        target = options[group]["_target_"]
        try:
            module = resolve_name(target).__module__
        except (ImportError, AttributeError, ValueError) as error:
            raise ValueError(f"{group}._target_={target}: {error}") from error
        source = getattr(sys.modules.get(module), "__file__", None)
        if source is not None and not module.startswith("testbed."):
            files[group] = Path(source)
    return {name: _digest(path) for name, path in files.items()}


def _digest(path: Path) -> str:
    """16 hex digits of what the file holds; read again only if it changed since."""
    state = path.stat()
    return _digest_as_of(path, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=32)
def _digest_as_of(path: Path, modified_ns: int, size: int) -> str:
    with path.open("rb") as stream:
        return file_digest(stream, "sha256").hexdigest()[:16]


def overridden(overrides: Iterable[str], options: Mapping[str, Any]) -> dict[str, Any]:
    """What the overrides set, by dotted name: a group's choice, or an option's value."""
    chosen: dict[str, Any] = {}
    for override in overrides:
        name, _, text = override.lstrip("+").partition("=")
        value: Any = options
        for key in name.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        chosen[name] = text if value is None or isinstance(value, dict) else value
    return chosen
