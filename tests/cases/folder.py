"""Runs every case file of a folder and compares what the product says with what is expected.

A case file is JSON: a list of instances, or an object with a list `instances`. An instance's kind
is the one whose input fields it has, else the one that the file is named after. Its expected values
are in `expected`, else beside its input fields.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from tests.cases import fair, lesson, order, template, timed, traces
from tests.cases.instance import Field, Instance, MissingData, Skip


class Kind(NamedTuple):
    """fields: the input fields. results: what the product gives for an instance that has them."""

    fields: Mapping[str, Field]
    results: Callable[[Instance], dict[str, Any]]


KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "order": Kind(order.FIELDS, order.results),
        "fair": Kind(fair.FIELDS, fair.results),
        "timed": Kind(timed.FIELDS, timed.results),
        "template": Kind(template.FIELDS, template.results),
        "lesson": Kind(lesson.FIELDS, lesson.results),
        "traces": Kind(traces.FIELDS, traces.results),
    }
)
LABELS = ("id", "name", "note")


class Outcome(NamedTuple):
    """What became of one instance, or of a file that holds none: `name` says which.

    failures: one line each, without the name. skipped: (field, reason). checked: values compared.
    """

    name: str
    failures: list[str]
    skipped: list[tuple[str, str]]
    checked: int


def run_folder(folder: Path) -> Iterator[Outcome]:
    """Every instance of every *.json file, files by name."""
    files = sorted(folder.glob("*.json"))
    if not files:
        yield _failed(str(folder), "no such folder, or no *.json file in it")
    for file in files:
        yield from run_file(file)


def run_file(file: Path) -> Iterator[Outcome]:
    """Every instance of one file."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        yield _failed(file.name, f"cannot be read as JSON: {error}")
        return
    instances = content.get("instances") if isinstance(content, dict) else content
    if not isinstance(instances, list) or not instances:
        yield _failed(file.name, "a list of instances, or an object with such a list, is needed")
        return
    for place, instance in enumerate(instances):
        yield _run_instance(file, place, instance)


def _run_instance(file: Path, place: int, instance: Any) -> Outcome:
    name = f"{file.name} {_label(instance, place)}"
    if not isinstance(instance, dict):
        return _failed(name, "an instance is an object")
    kind = _kind(instance, file.stem)
    if kind is None:
        known = "; ".join(f"{kind} has {', '.join(KINDS[kind].fields)}" for kind in KINDS)
        return _failed(
            name, f"no known kind of case has its fields {', '.join(instance)} ({known})"
        )
    wrong = [
        f"{field}: {_value(instance, field)}; {needed} is needed"
        for field, (accepts, needed) in kind.fields.items()
        if field not in instance or not accepts(instance[field])
    ]
    if wrong:
        return Outcome(name, wrong, [], 0)
    try:
        found = kind.results(instance)
    except MissingData as error:
        return Outcome(name, [], [("every field", str(error))], 0)
    except Exception as error:
        # One broken case, or a crash of the product in it, must not hide what the others say.
        return _failed(name, f"{type(error).__name__}: {error}")
    pairs = list(_pairs(_expected(instance, kind), found, ""))
    skipped = [(field, got.reason) for field, _, got in pairs if isinstance(got, Skip)]
    failures = [
        f"{field}: expected {value}, got {got}"
        for field, value, got in pairs
        if not isinstance(got, Skip) and got != value
    ]
    return Outcome(
        name, failures if pairs else ["it expects nothing"], skipped, len(pairs) - len(skipped)
    )


def _kind(instance: Instance, stem: str) -> Kind | None:
    fitting = [kind for kind in KINDS.values() if kind.fields.keys() <= instance.keys()]
    # A fair case has all fields of a timed one.
    return max(fitting, key=lambda kind: len(kind.fields), default=KINDS.get(stem))


def _label(instance: Any, place: int) -> str:
    """The id; without one, the place in the file (from 0) and the fields that hold one value."""
    if not isinstance(instance, dict):
        return f"#{place}"
    if "id" in instance:
        return str(instance["id"])
    inputs = {field for kind in KINDS.values() for field in kind.fields}
    values = [
        f"{field}={value}"
        for field, value in instance.items()
        if field in inputs and not isinstance(value, dict | list)
    ]
    return " ".join([f"#{place}", *values])


def _expected(instance: Instance, kind: Kind) -> dict[str, Any]:
    if "expected" in kind.fields:
        return dict(instance["expected"])
    inputs = {*kind.fields, *LABELS}
    return {field: value for field, value in instance.items() if field not in inputs}


def _value(instance: Instance, field: str) -> str:
    if field not in instance:
        return "it is missing"
    text = json.dumps(instance[field])
    return text if len(text) <= 60 else text[:57] + "..."


def _pairs(expected: Any, found: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    """(field, expected, found) for every value that is no object, or that was left out."""
    if not isinstance(expected, dict) or isinstance(found, Skip):
        yield path, expected, found
        return
    for key, value in expected.items():
        field = f"{path}.{key}" if path else key
        got = found.get(key, Skip("no such result")) if isinstance(found, dict) else found
        yield from _pairs(value, got, field)


def _failed(name: str, why: str) -> Outcome:
    return Outcome(name, [why], [], 0)
