"""Runs the kernels in Triton's interpreter, and skips where it cannot.

On a GPU, `TRITON_INTERPRET=0 python -m pytest tests/kernels` runs what is compiled.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path

import pytest

# Triton reads it when it defines its own functions, so it must be set before anything imports it.
assert "TRITON_INTERPRET" in os.environ or "triton" not in sys.modules, "set TRITON_INTERPRET=1"
os.environ.setdefault("TRITON_INTERPRET", "1")


def obstacle() -> str | None:
    """What keeps the kernels from running here, and what would help; None if nothing does."""
    missing = [name for name in ("torch", "triton") if importlib.util.find_spec(name) is None]
    if missing:
        return f"{' and '.join(missing)} not installed: pip install '.[engine]'"
    interpreted = os.environ["TRITON_INTERPRET"] == "1"
    if interpreted and release("triton") < (3, 7) and release("numpy") >= (2, 4):
        return "Triton 3.6's interpreter fails with NumPy 2.4: install 'numpy<2.4' or 'triton>=3.7'"
    return None


def release(package: str) -> tuple[int, int]:
    major, minor = version(package).split(".")[:2]
    return int(major), int(minor)


OBSTACLE = obstacle()


class Skipped(pytest.Module):
    """A test module that says what is missing instead of failing on its imports."""

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        pytest.skip(str(OBSTACLE), allow_module_level=True)


def pytest_pycollect_makemodule(
    module_path: Path, parent: pytest.Collector
) -> pytest.Module | None:
    return Skipped.from_parent(parent, path=module_path) if OBSTACLE else None


def pytest_itemcollected(item: pytest.Item) -> None:
    # Triton 3.6's interpreter takes the bounds of loops from arrays of one element.
    item.add_marker(
        pytest.mark.filterwarnings("ignore:Conversion of an array with ndim:DeprecationWarning")
    )


@pytest.fixture(autouse=True)
def one_thread() -> None:
    import torch

    torch.set_num_threads(1)
