"""Fields of one line of a trace: each error names the field, its value and what is accepted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import numpy as np

from testbed.core.request import Tokens
from testbed.workloads.parameters import MAX_LENGTH
from testbed.workloads.tokens import NUM_INT32_TOKENS

MAX_SECONDS = 1e11
"""Later than any date in seconds; a date in milliseconds is beyond it."""

Fields = Mapping[str, Any]


def parse_json(text: str) -> Any:
    """The value of a line; ValueError if it is no strict JSON (NaN is none)."""
    try:
        return json.loads(text, parse_constant=refuse_constant, object_pairs_hook=unique_fields)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON ({error})") from None


def unique_fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object for a decoder; ValueError if a field stands twice: which one is meant?"""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{shown(twice)} stands twice in one object")
    return fields


def require_object(value: Any, what: str = "the line") -> dict[str, Any]:
    """The value, if it is a JSON object."""
    if not isinstance(value, dict):
        raise ValueError(f"{what} is {shown(value)}; a JSON object is needed")
    return value


def present(fields: Fields, name: str) -> Any:
    """The field's value; ValueError if there is none."""
    if name not in fields:
        raise ValueError(f"{name} is missing")
    return fields[name]


def first_present(fields: Fields, names: tuple[str, ...]) -> str | None:
    """The first of the names that the fields give a value."""
    return next((name for name in names if fields.get(name) is not None), None)


def whole_number(fields: Fields, name: str, least: int, most: int) -> int:
    """A whole number from `least` to `most`; 3000.0 counts as one in a timestamp alone."""
    value = present(fields, name)
    if name == "timestamp" and type(value) is float and value.is_integer():
        value = int(value)
    if type(value) is not int or not least <= value <= most:
        raise ValueError(
            f"{name} is {shown(value)}; a whole number from {least} to {most} is needed"
        )
    return value


def length(fields: Fields, name: str) -> int:
    """A length in tokens, from 1 on."""
    return whole_number(fields, name, 1, MAX_LENGTH)


def seconds(fields: Fields, name: str, unit: float = 1.0) -> float:
    """A time as a number of `unit` seconds, or as an ISO 8601 date (UTC if it names no zone)."""
    value = present(fields, name)
    if isinstance(value, str):
        return iso_seconds(name, value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name} is {shown(value)}; a time in seconds or an ISO date is needed")
    # A whole number of any size can be compared, not multiplied.
    if not 0 <= value <= MAX_SECONDS / unit:
        hint = f" (milliseconds are read from {name.removesuffix('_s')}_ms)" if unit == 1.0 else ""
        raise ValueError(
            f"{name} is {shown(value)}; {_unit_name(unit)} from 0 to {MAX_SECONDS / unit:.0e} "
            f"are needed{hint}"
        )
    return value * unit


def iso_seconds(name: str, value: str) -> float:
    """Seconds since 1970 of an ISO 8601 date; UTC if it names no zone. Beyond microseconds is cut.

    Azure's traces write seven digits of a second. ValueError before 1970 or after the year 5138.
    """
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        raise ValueError(f"{name} is {shown(value)}; an ISO 8601 date is needed") from None
    time = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    if not 0 <= time <= MAX_SECONDS:
        raise ValueError(f"{name} is {shown(value)}; a date from 1970 to the year 5138 is needed")
    return time


def _unit_name(unit: float) -> str:
    return {1e-3: "milliseconds", 1e-9: "nanoseconds"}.get(unit, "seconds")


def text(value: Any, name: str) -> str:
    """A string that can be encoded."""
    if not isinstance(value, str):
        raise ValueError(f"{name} is {shown(value)}; text is needed")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{name} holds half a surrogate pair, which is no text") from None
    return value


def label(value: Any, name: str) -> str:
    """A name of a client or session: text, or a whole number."""
    return str(value) if type(value) is int else text(value, name)


def token_ids(value: Any, name: str) -> Tokens:
    """int32 token ids from a list of at least one whole number."""
    if not isinstance(value, list):
        raise ValueError(f"{name} is {shown(value)}; a list of token ids is needed")
    if not 1 <= len(value) <= MAX_LENGTH:
        raise ValueError(f"{name} has {len(value)} entries; 1 to {MAX_LENGTH} are needed")
    most = NUM_INT32_TOKENS - 1
    if set(map(type, value)) != {int} or min(value) < 0 or max(value) > most:
        bad = next(i for i in value if type(i) is not int or not 0 <= i <= most)
        raise ValueError(f"{name} holds {shown(bad)}; whole numbers from 0 to {most} are needed")
    return np.array(value, dtype=np.int32)


def shown(value: Any) -> str:
    """The value as an error shows it, in at most 40 characters."""
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    written = json.dumps(value)
    return written if len(written) <= 40 else written[:37] + "..."


def refuse_constant(name: str) -> None:
    """What a JSON decoder does with NaN and Infinity, which JSON does not know."""
    raise ValueError(f"{name} is no number")
