"""The rules between the rooms, checked on the source itself."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MAX_LINES = 400

ROOMS: dict[str, set[str]] = {
    "core": {"numpy"},
    "policies": {
        "testbed.core.policy",
        "testbed.core.views",
        "testbed.core.replica_view",
        "testbed.core.cost",
        "testbed.core.token_tree",
    },
    "workloads": {"testbed.core", "testbed.whole_file", "numpy", "tokenizers"},
    "sim": {
        "testbed.core",
        "testbed.policies",
        "testbed.workloads",
        "testbed.whole_file",
        "simpy",
        "numpy",
    },
    "engine": {
        "testbed.core",
        "testbed.policies",
        "testbed.workloads",
        "testbed_kernels",
        "torch",
        "transformers",
        "safetensors",
        "numpy",
    },
    "metrics": {"testbed.core", "numpy", "pandas", "pyarrow", "yaml"},
    "reports": {
        "testbed.core",
        "testbed.metrics",
        "testbed.whole_file",
        "matplotlib",
        "numpy",
        "pandas",
    },
    # The engine only where decision parity is looked at, when that runs.
    "conformance": {
        "testbed.core",
        "testbed.policies",
        "testbed.sim",
        "testbed.metrics.bounds",
        "testbed.engine",
        "numpy",
    },
    # Each command imports what it needs when it runs.
    "commands": {"testbed", "numpy", "packaging", "torch", "tqdm"},
    "advisor": {
        "testbed.core",
        "testbed.policies",
        "testbed.workloads",
        "testbed.metrics",
        "testbed.sim",
        "numpy",
    },
}
"""What each room of testbed/ may import besides itself and the standard library."""

EXCEPTIONS = {
    # Its trie of waiting prompts is a RadixTree of its own, not the cache's.
    "testbed/policies/scheduling/depth_first.py": {
        "testbed.core.radix_tree",
        "testbed.core.page_pool",
    },
}

KNOWS_HYDRA = {"experiments/run.py", "testbed/cli.py", "testbed/policies/registry.py"}

MUTABLE_CALLS = {
    "dict",
    "list",
    "set",
    "bytearray",
    "defaultdict",
    "deque",
    "Counter",
    "OrderedDict",
    "count",
    "default_rng",
    "Random",
}
MUTATORS = {
    "add",
    "append",
    "clear",
    "discard",
    "extend",
    "insert",
    "pop",
    "popitem",
    "remove",
    "setdefault",
    "update",
}


def sources(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def imported_modules(tree: ast.Module) -> Iterator[str]:
    """Every module named by an import anywhere in the file; `from a import b` gives a.b too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            assert node.module is not None
            if node.module == "testbed":
                yield from (f"testbed.{alias.name}" for alias in node.names)
            else:
                yield node.module


def within(module: str, allowed: set[str]) -> bool:
    return any(module == name or module.startswith(name + ".") for name in allowed)


def forbidden_imports(source: str, room: str, allowed: set[str]) -> list[str]:
    accepted = allowed | {f"testbed.{room}"} | set(sys.stdlib_module_names)
    modules = imported_modules(ast.parse(source))
    return [module for module in modules if not within(module, accepted)]


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_what_the_map_allows(room: str) -> None:
    for path in sources(f"testbed/{room}"):
        allowed = ROOMS[room] | EXCEPTIONS.get(name_of(path), set())
        if name_of(path) in KNOWS_HYDRA:
            allowed |= {"hydra", "omegaconf"}
        found = forbidden_imports(path.read_text(encoding="utf-8"), room, allowed)
        assert found == [], f"{name_of(path)} imports {', '.join(found)}"


def test_every_room_is_on_the_map() -> None:
    rooms = {path.name for path in (ROOT / "testbed").iterdir() if any(path.glob("*.py"))}
    assert rooms <= ROOMS.keys()


def test_the_import_rule_finds_a_forbidden_import_wherever_it_stands() -> None:
    hidden = "def f():\n    from testbed import engine\n    import torch.cuda\n"
    assert forbidden_imports(hidden, "sim", ROOMS["sim"]) == ["testbed.engine", "torch.cuda"]
    allowed = "import heapq\nfrom testbed.core.batch import Batch\nimport numpy.typing as npt\n"
    assert forbidden_imports(allowed, "sim", ROOMS["sim"]) == []


def test_only_three_files_know_hydra() -> None:
    for path in sources("testbed", "experiments", "kernels"):
        if name_of(path) not in KNOWS_HYDRA:
            modules = list(imported_modules(parse(path)))
            assert not any(within(module, {"hydra", "omegaconf"}) for module in modules), path


def test_kernels_know_nothing_of_the_testbed() -> None:
    for path in sources("kernels"):
        assert not any(within(m, {"testbed"}) for m in imported_modules(parse(path))), path


@pytest.mark.parametrize(
    ("imported", "absent"),
    [
        ("testbed.sim.world", {"torch", "triton", "transformers", "pandas", "matplotlib", "hydra"}),
        ("testbed.conformance", {"torch", "transformers", "pandas", "matplotlib", "hydra"}),
        ("testbed.policies", {"torch", "pandas", "matplotlib", "simpy", "hydra"}),
        ("testbed.cli", {"torch", "pandas", "matplotlib", "simpy", "hydra"}),
    ],
)
def test_importing_leaves_heavy_packages_out(imported: str, absent: set[str]) -> None:
    program = (
        f"import sys, importlib; importlib.import_module({imported!r}); "
        f"print(*sorted(set({sorted(absent)!r}) & sys.modules.keys()))"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == []


def is_mutable(value: ast.expr | None) -> bool:
    if isinstance(value, ast.Dict | ast.List | ast.Set | ast.DictComp | ast.ListComp | ast.SetComp):
        return True
    if isinstance(value, ast.Call):
        called = value.func
        name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
        return name in MUTABLE_CALLS
    return False


def assigned(statements: list[ast.stmt]) -> Iterator[tuple[str, ast.expr | None]]:
    for statement in statements:
        if isinstance(statement, ast.Assign):
            for target in statement.targets:
                if isinstance(target, ast.Name):
                    yield target.id, statement.value
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            yield statement.target.id, statement.value
        elif isinstance(statement, ast.ClassDef):
            yield from assigned(statement.body)


def written_names(tree: ast.Module) -> Iterator[str]:
    """Names (or attributes) whose contents some statement changes: n[k] = v, n.append(v), ..."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            yield from node.names
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
            yield last_name(node.value)
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in MUTATORS
        ):
            yield last_name(node.func.value)


def last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def mutable_state(trees: dict[str, ast.Module]) -> list[str]:
    """Module and class variables that are mutable containers or generators of numbers.

    A container in upper case is a constant, and passes as long as nothing changes its contents.
    """
    written = {name for tree in trees.values() for name in written_names(tree)}
    return [
        f"{file}: {name}"
        for file, tree in trees.items()
        for name, value in assigned(tree.body)
        if is_mutable(value) and not name.startswith("__")
        if not name.isupper() or name in written
    ]


def test_there_is_no_module_level_mutable_state() -> None:
    trees = {name_of(path): parse(path) for path in sources("testbed", "kernels")}
    assert mutable_state(trees) == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("registry = {}", ["m: registry"]),
        ("class A:\n    seen: list[int] = []", ["m: seen"]),
        ("from itertools import count\nids = count()", ["m: ids"]),
        ("TABLE = {1: 2}", []),
        ("TABLE = {1: 2}\ndef f():\n    TABLE[3] = 4", ["m: TABLE"]),
        ("TABLE: dict[int, int] = {}\ndef f():\n    TABLE.update(a=1)", ["m: TABLE"]),
        ("def f():\n    rows = []\n    rows.append(1)", []),
    ],
)
def test_the_state_rule_tells_constants_from_state(source: str, found: list[str]) -> None:
    assert mutable_state({"m": ast.parse(source)}) == found


def test_no_file_is_too_long_for_one_sitting() -> None:
    for path in sources("testbed", "experiments", "kernels", "tests"):
        lines = len(path.read_text(encoding="utf-8").splitlines())
        assert lines <= MAX_LINES, f"{name_of(path)}: {lines} lines; split it by reason to change"
