"""The engine's tests need torch and transformers, which a plain development install leaves out."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

import pytest

MISSING = [name for name in ("torch", "transformers") if find_spec(name) is None]


class Skipped(pytest.Module):
    """A test module that says what is missing instead of failing on its imports."""

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        reason = f"{' and '.join(MISSING)} not installed: pip install '.[engine]'"
        pytest.skip(reason, allow_module_level=True)


def pytest_pycollect_makemodule(
    module_path: Path, parent: pytest.Collector
) -> pytest.Module | None:
    return Skipped.from_parent(parent, path=module_path) if MISSING else None


@pytest.fixture(autouse=True)
def one_thread() -> None:
    import torch

    # Two threads on tiny matrices wait for each other longer than they compute.
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def models() -> object:
    """Models by name, each loaded once."""
    from tests.engine.building import Models

    return Models()
