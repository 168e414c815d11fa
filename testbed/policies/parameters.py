"""What a policy's signature accepts, and what is wrong with a signature or a value."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import signature
from pathlib import Path
from traceback import extract_tb
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints


def check_parameters(policy: type[Any], parameters: Mapping[str, Any], label: str) -> None:
    """ValueError for a parameter that the class does not take, or of another type than declared,
    or that is needed and absent.

    Checked are scalars, Literal, None and unions of these; the class itself judges the rest.
    """
    accepted = signature(policy).parameters
    takes_any = any(p.kind is p.VAR_KEYWORD for p in accepted.values())
    for name in parameters:
        if name not in accepted and not takes_any:
            listed = ", ".join(accepted) or "no parameters"
            raise ValueError(f"{label}: no parameter {name!r}; it takes {listed}")
    for name, parameter in accepted.items():
        variadic = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if name not in parameters and parameter.default is parameter.empty and not variadic:
            raise ValueError(f"{label}: {name}: a value is needed")
    hints = get_type_hints(policy.__init__) if parameters else {}
    for name, value in parameters.items():
        if needed := _mismatch(value, hints.get(name)):
            raise ValueError(f"{label}: {name}={value!r}: {needed}")


def _mismatch(value: Any, hint: Any) -> str:
    """What is needed, where a declaration does not accept the value; else empty."""
    choices = _choices(hint)
    if not choices or any(_fits(value, choice) for choice in choices):
        return ""
    shown = [c.__name__ if isinstance(c, type) else str(c) for c in choices]
    # As it is written in YAML and at the command line.
    shown = ["null" if name == "None" else name for name in shown]
    return f"{' or '.join(filter(None, (', '.join(shown[:-1]), shown[-1])))} is needed"


def _choices(hint: Any) -> tuple[Any, ...]:
    """The scalar types and the values that a declaration accepts; empty if it accepts others."""
    if get_origin(hint) is Literal:
        return get_args(hint)
    if get_origin(hint) in (Union, UnionType):
        parts = [_choices(part) for part in get_args(hint)]
        return tuple(choice for part in parts for choice in part) if all(parts) else ()
    if hint is type(None):
        return (None,)
    return (hint,) if hint in (bool, int, float, str) else ()


def _fits(value: Any, choice: Any) -> bool:
    if choice is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if isinstance(choice, type):
        return type(value) is choice
    return type(value) is type(choice) and bool(value == choice)


def check_signature(policy: type[Any]) -> None:
    """ValueError for annotations that cannot be evaluated, and for ill-typed defaults."""
    try:
        hints, accepted = get_type_hints(policy.__init__), signature(policy).parameters
    except Exception as error:
        raise ValueError(f"signature of {policy.__qualname__}: {reason(error)}") from error
    for name, parameter in accepted.items():
        needed = _mismatch(parameter.default, hints.get(name))
        if needed and parameter.default is not parameter.empty:
            raise ValueError(f"default {name}={parameter.default!r}: {needed}")


def reason(error: BaseException) -> str:
    """On one line: what was raised, and where unless the message says it."""
    text = " ".join(str(error).split())
    if isinstance(error, ImportError):
        return text
    text = ": ".join(filter(None, (type(error).__name__, text)))
    frames = [] if isinstance(error, SyntaxError) else extract_tb(error.__traceback__)[-1:]
    return text + "".join(f" ({Path(f.filename).name}, line {f.lineno})" for f in frames)
