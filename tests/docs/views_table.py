"""The tables of docs/policies.md, taken from the source: `python -m tests.docs.views_table`
writes them anew."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from typing import Any

from testbed.core import cost, policy, replica_view, views

DOC = Path(__file__).resolve().parents[2] / "docs" / "policies.md"
VIEWS: dict[str, tuple[Any, str]] = {
    "SchedulerView": (views, "`view` of a scheduling policy, and of an eviction policy's on_start"),
    "WaitingView": (views, "`view.waiting`"),
    "ClientView": (views, "an entry of `view.clients`"),
    "RequestView": (views, "the request, as a router sees it"),
    "SequenceView": (views, "the request on its replica; has every field of RequestView"),
    "OracleView": (views, "what a policy with `oracle = True` gets in place of a SequenceView"),
    "CacheView": (views, "`view.cache`"),
    "NodeView": (views, "a node of the radix tree"),
    "ReplicaView": (replica_view, "one replica, as a router sees it"),
    "CostModel": (cost, "`view.cost`"),
}
ITERATE = ("for sequence in ...", "roots()", "children()")
"""What gives one thing after the other, at no cost that its docstring would name."""
HOOKS = ("SchedulingPolicy", "EvictionPolicy", "RoutingPolicy")


def table(module: Any, name: str) -> str:
    """Field, meaning and cost of every public member, in the order of the source."""
    rows = ["| field | what it says | cost |", "|---|---|---|"]
    for member, text in members(module, name):
        costs = re.findall(r"O\((?:[^()]|\([^()]*\))*\)(?: to build)?", text)
        if not costs and member in ITERATE:
            costs = ["O(1) each"]
        price = ", then ".join(costs) or "O(1)"
        rows.append(f"| `{member}` | {text.replace('|', chr(92) + '|')} | {price} |")
    return "\n".join(rows)


def hooks(name: str) -> str:
    """Every method and declaration of an abstract class."""
    rows = ["| | what it is for |", "|---|---|"]
    rows += [f"| `{m}` | {text.replace('|', chr(92) + '|')} |" for m, text in members(policy, name)]
    return "\n".join(rows)


def members(module: Any, name: str) -> list[tuple[str, str]]:
    """(signature, docstring on one line) of each documented public member."""
    tree = ast.parse(inspect.getsource(module))
    (found,) = (n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == name)
    listed: list[tuple[str, str]] = []
    for place, node in enumerate(found.body):
        if isinstance(node, ast.FunctionDef):
            decorators = [ast.unparse(d) for d in node.decorator_list]
            if any(d.endswith(".setter") for d in decorators):
                continue
            text = ast.get_docstring(node) or ""
            label = node.name
            if "property" not in decorators:
                label += f"({', '.join(a.arg for a in node.args.args[1:])})"
            if label.startswith("__") and label != "__len__()" and label != "__iter__()":
                continue
            label = {"__len__()": "len(...)", "__iter__()": "for sequence in ..."}.get(label, label)
            if not text:
                text = {"len(...)": "How many wait.", "for sequence in ...": "Front to back."}.get(
                    label, ""
                )
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            label = node.target.id
            below = found.body[place + 1] if place + 1 < len(found.body) else None
            is_text = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
            text = str(below.value.value) if is_text else ""  # type: ignore[union-attr]
            if name == "ClientView":
                text = f"Sequences of the client that are {label}."
        else:
            continue
        if not label.startswith("_"):
            assert text, f"{name}.{label} has no docstring"
            listed.append((label, " ".join(text.split())))
    return listed


def generated() -> dict[str, str]:
    """Each table by the marker that it stands behind."""
    tables = {name: f"{table(m, name)}" for name, (m, _) in VIEWS.items()}
    return tables | {name: hooks(name) for name in HOOKS}


def filled(text: str) -> str:
    """The document with every table as the source has it now."""
    for name, rows in generated().items():
        pattern = rf"(<!-- table: {name} -->\n).*?(\n<!-- end -->)"
        text, count = re.subn(pattern, lambda m, r=rows: m[1] + r + m[2], text, flags=re.DOTALL)  # type: ignore[misc]
        assert count == 1, f"docs/policies.md has {count} places for {name}"
    return text


if __name__ == "__main__":
    DOC.write_text(filled(DOC.read_text(encoding="utf-8")), encoding="utf-8")
