"""Config schemas taken from the signatures of the classes they configure.

A class is described once, where it is written: its parameters, their types and their defaults are
the options of its config group, so a policy from another package gets the same checks.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Callable, Mapping
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

MISSING = "???"
"""What a config shows for an option without a default; using it unset is an error."""

_SCALARS = (bool, int, float, str)


def schema_of(
    target: Callable[..., Any],
    *,
    drop: tuple[str, ...] = (),
    extra: Mapping[str, tuple[Any, Any]] | None = None,
    defaults: Mapping[str, Any] | None = None,
    instantiable: bool = True,
) -> type:
    """A dataclass with the parameters of `target`, less `drop`, plus `extra` (name: type, default).

    defaults: values in place of the signature's. instantiable: add `_target_`, which names the
    class. A default that is a dataclass instance becomes its fields and `_target_`. A parameter
    whose default no config file can hold stays out; it keeps its default.
    """
    called = target.__init__ if inspect.isclass(target) else target
    hints = get_type_hints(called)
    specs: list[tuple[str, Any, Any]] = []
    if instantiable:
        specs.append(("_target_", str, target_of(target)))
    for name, parameter in inspect.signature(target).parameters.items():
        variadic = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if name in drop or variadic:
            continue
        default = (defaults or {}).get(name, parameter.default)
        if default is parameter.empty:
            default = MISSING
        try:
            specs.append((name, _option_type(name, hints.get(name, Any)), _plain(default)))
        except TypeError:
            continue
    specs += [(name, kind, default) for name, (kind, default) in (extra or {}).items()]
    fields = [(name, kind, _field(kind, default)) for name, kind, default in specs]
    return dataclasses.make_dataclass(target.__name__, fields)


def target_of(called: Callable[..., Any]) -> str:
    """Where `called` is imported from, as `_target_` writes it."""
    return f"{called.__module__}.{called.__qualname__}"


def _option_type(name: str, annotation: Any) -> Any:
    """The annotation as far as a config can check it, else Any."""
    if annotation in _SCALARS:
        return annotation
    members = get_args(annotation)
    if get_origin(annotation) is Literal and all(isinstance(m, str) for m in members):
        return Enum(name, {member: member for member in members})
    if get_origin(annotation) in (Union, UnionType) and NoneType in members:
        inner = [member for member in members if member is not NoneType]
        if len(inner) == 1 and inner[0] in _SCALARS:
            return annotation
    return Any


def _plain(value: Any) -> Any:
    """The value as a config file can hold it; TypeError if it cannot."""
    if value is None or isinstance(value, _SCALARS):
        return value
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        given = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.init}
        return {"_target_": target_of(type(value)), **_plain(given)}
    raise TypeError(f"{value!r} cannot stand in a config")


def _field(kind: Any, default: Any) -> Any:
    if isinstance(kind, type) and issubclass(kind, Enum) and default != MISSING:
        return dataclasses.field(default=kind(default))
    if isinstance(default, list | dict):
        return dataclasses.field(default_factory=lambda: copy.deepcopy(default))
    return dataclasses.field(default=default)
