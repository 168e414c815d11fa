"""A run's folder: its tables, its numbers, and what is needed to repeat it; all or nothing."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from testbed.core.records import (
    ADDED_COLUMNS,
    DECISION_COLUMNS,
    MEASURED_COLUMNS,
    REQUEST_COLUMNS,
    STEP_COLUMNS,
    Column,
    Columns,
    RunRecord,
)

COMPLETE = "COMPLETE"
"""The marker, written last; it holds the config hash."""
FAILED = "FAILED"
"""Stands in its place in what is left of a run that broke off; it holds the reason."""
RUN_FILES = (
    "config.yaml",
    "manifest.json",
    "requests.parquet",
    "steps.parquet",
    "decisions.parquet",
    "added.parquet",
    "measured.parquet",
    "summary.json",
    FAILED,
    COMPLETE,
)
RECORDED_VERSIONS = (
    "radix-testbed",
    "numpy",
    "pandas",
    "pyarrow",
    "simpy",
    "hydra-core",
    "torch",
    "triton",
    "transformers",
)


class ResultsError(Exception):
    """A run folder cannot be written or read; the message names it and says what to do."""


def config_hash(config: Mapping[str, Any]) -> str:
    """16 hex digits that identify a resolved config; the order of its keys does not matter."""
    text = json.dumps(config, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def is_complete(folder: str | Path, expected_hash: str) -> bool:
    """Whether the folder holds a complete run of this config.

    Raises ResultsError if it holds a complete run of another one, or anything that is no run.
    """
    present = Path(folder).iterdir() if Path(folder).exists() else ()
    foreign = sorted(path.name for path in present if path.name not in RUN_FILES)
    if foreign:
        raise ResultsError(f"{folder} holds {foreign[0]!r}, which is no part of a run")
    marker = Path(folder) / COMPLETE
    if not marker.is_file():
        return False
    found = marker.read_bytes()[:80].decode(errors="replace").strip()
    if not re.fullmatch("[0-9a-f]{16}", found):
        raise ResultsError(
            f"{folder}: {COMPLETE} is damaged; it holds {found!r}, not the hash of a config; "
            "remove the folder, and the run can be repeated"
        )
    if found != expected_hash:
        raise ResultsError(
            f"{folder} holds a complete run of another config (hash {found}, not {expected_hash}); "
            "write to another folder, or remove this one"
        )
    return True


def write_run(
    folder: str | Path,
    *,
    config: Mapping[str, Any],
    record: RunRecord,
    summary: Mapping[str, float],
    seed: int,
    wall_seconds: float,
    overrides: Mapping[str, Any] | None = None,
    write_steps: bool = True,
    added: Columns | None = None,
    measured: Columns | None = None,
    machine: Mapping[str, Any] | None = None,
    failure: str | None = None,
    oracles: Sequence[str] = (),
) -> None:
    """Write one run; afterwards the folder is complete, and before that it does not exist.

    config: resolved, of plain values. overrides: by name what was set for this run; testbed.load
    makes columns of them. added, measured: an engine run's, by ADDED_COLUMNS and MEASURED_COLUMNS.
    machine: entries of the manifest about what it ran on; `hardware` is this machine's processor
    unless given. failure: why the run broke off; then the folder is not complete, and the next run
    takes its place. oracles: the options whose policy was told what no real system knows; reports
    mark the run. A complete run of the same config is kept. Raises ResultsError if the folder
    holds anything else; the leftovers of killed writers are removed.
    """
    folder = Path(folder)
    digest = config_hash(config)
    is_complete(folder, digest)
    manifest = {
        "config_hash": digest,
        "overrides": dict(overrides or {}),
        "seed": seed,
        "oracles": list(oracles),
        "counters": record.counters,
        "wall_seconds": wall_seconds,
        "git_commit": _git_commit(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "hardware": processor(),
        "versions": _versions(),
        **(machine or {}),
    }
    tables = (
        ("requests", record.requests, REQUEST_COLUMNS),
        ("steps", record.steps if write_steps else None, STEP_COLUMNS),
        ("decisions", record.decisions, DECISION_COLUMNS),
        ("added", added, ADDED_COLUMNS),
        ("measured", measured, MEASURED_COLUMNS),
    )
    folder.parent.mkdir(parents=True, exist_ok=True)
    # The name of a killed writer's folder says that it is dead; nobody else writes into ours, so
    # one with our number is of a process that had it before us.
    for left_over in folder.parent.glob(f".{folder.name}.*.partial"):
        writer = left_over.name.split(".")[-2]
        if writer == str(os.getpid()) or not _is_running(writer):
            shutil.rmtree(left_over, ignore_errors=True)
    partial = folder.with_name(f".{folder.name}.{os.getpid()}.partial")
    partial.mkdir()
    try:
        (partial / "config.yaml").write_text(yaml.safe_dump(dict(config), sort_keys=False))
        _write_json(partial / "manifest.json", manifest)
        _write_json(partial / "summary.json", summary)
        for name, columns, schema in tables:
            if columns is not None:
                _write_table(partial / f"{name}.parquet", columns, schema)
        for path in sorted(partial.iterdir()):
            _sync(path)
        marker, content = (COMPLETE, digest) if failure is None else (FAILED, failure)
        (partial / marker).write_text(content + "\n")
        _sync(partial / marker)
        _sync(partial)
        _move_into_place(partial, folder, digest)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    _sync(folder.parent)


def arrow_schema(columns: Mapping[str, Column]) -> pa.Schema:
    """The parquet schema of a table of testbed.core.records."""
    return pa.schema(
        [
            (name, _ARROW_TYPES.get(column.dtype) or pa.type_for_alias(column.dtype))
            for name, column in columns.items()
        ]
    )


_ARROW_TYPES: Mapping[str, Any] = MappingProxyType(
    {"str": pa.string(), "tokens": pa.list_(pa.int32())}
)


def _write_table(path: Path, columns: Columns, schema: Mapping[str, Column]) -> None:
    """The bytes depend on the content and on the version of pyarrow alone."""
    table = pa.table({name: columns[name] for name in schema}, schema=arrow_schema(schema))
    pq.write_table(table, path, compression="zstd")


def _write_json(path: Path, values: Mapping[str, Any]) -> None:
    """NaN becomes null: JSON has no NaN."""
    plain = {
        key: None if isinstance(value, float) and math.isnan(value) else value
        for key, value in values.items()
    }
    path.write_text(json.dumps(plain, indent=1, allow_nan=False) + "\n")


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _versions() -> dict[str, str]:
    """Of the packages that are installed."""
    found: dict[str, str] = {}
    for name in RECORDED_VERSIONS:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _move_into_place(partial: Path, folder: Path, digest: str) -> None:
    """Make the written run the folder, unless another writer of the same run came first."""
    while True:
        try:
            partial.rename(folder)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        if is_complete(folder, digest):
            shutil.rmtree(partial)
            return
        shutil.rmtree(folder, ignore_errors=True)


def _is_running(process: str) -> bool:
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return False
    except (PermissionError, ValueError):
        pass
    return True


def processor() -> str:
    """The processor and its number of cores."""
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        lines = cpuinfo.read_text().splitlines()
        name = next(
            (x.partition(":")[2].strip() for x in lines if x.startswith("model name")), name
        )
    return f"{name}, {os.cpu_count()} cores"


def _git_commit() -> str | None:
    """The commit that this code is checked out at, `-dirty` if it was changed; None if unknown."""
    here = Path(__file__).parent
    # Installed code may lie inside a stranger's checkout: only a tracked file speaks for itself.
    tracked = ["git", "ls-files", "--error-unmatch", Path(__file__).name]
    describe = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        subprocess.run(tracked, cwd=here, check=True, capture_output=True)
        return subprocess.run(
            describe, cwd=here, check=True, capture_output=True, text=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
