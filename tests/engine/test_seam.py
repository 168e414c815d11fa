"""Everything above Executor.execute is shared: neither backend bends it or asks for the other."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import testbed

ROOT = Path(testbed.__file__).parent


def parsed(room: str) -> Iterator[ast.Module]:
    for path in sorted((ROOT / room).rglob("*.py")):
        yield ast.parse(path.read_text(encoding="utf-8"))


def classes(room: str) -> dict[str, ast.ClassDef]:
    return {
        node.name: node
        for tree in parsed(room)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }


def names(node: ast.AST) -> set[str]:
    found = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    return found | {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)}


def test_no_backend_subclasses_what_both_share() -> None:
    shared = classes("core").keys() | classes("policies").keys()
    assert {"Scheduler", "RadixCache", "Recorder", "Lpm"} <= shared
    for room in ("sim", "engine"):
        for name, node in classes(room).items():
            bases = {found for base in node.bases for found in names(base)}
            assert not bases & shared, f"{room}: {name}"


def test_no_backend_patches_what_both_share() -> None:
    """Nobody assigns to a class or module it imported, or calls setattr."""
    for room in ("sim", "engine"):
        for tree in parsed(room):
            imported = {
                alias.asname or alias.name
                for node in ast.walk(tree)
                if isinstance(node, ast.Import | ast.ImportFrom)
                for alias in node.names
            }
            for node in ast.walk(tree):
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                    assert not (isinstance(node.value, ast.Name) and node.value.id in imported)
                assert not (isinstance(node, ast.Name) and node.id == "setattr")


def test_nothing_above_the_seam_asks_which_backend_runs() -> None:
    backends = classes("sim").keys() | classes("engine").keys()
    assert {"ModelExecutor", "RecordedExecutor", "Replica"} <= backends
    for room in ("core", "policies"):
        for tree in parsed(room):
            assert not names(tree) & backends
