"""Lint rules L3 and L4: tools in another order, JSON keys in another order, tools that change."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from testbed.advisor.findings import (
    MIN_REQUESTS,
    Detected,
    Finding,
    place,
    texts_of,
    with_texts,
)
from testbed.advisor.sessions import parents
from testbed.workloads.formats.record import TOOL, Record, RecordSegment

_OPENING = re.compile(r"[{\[]\s*[\"{\[]")
MIN_JSON_CHARACTERS = 20


def find_tool_order(records: Sequence[Record]) -> list[Detected]:
    """L3 for tool definitions: the same tools, listed or written differently."""
    first: dict[tuple[str, ...], tuple[Record, tuple[str, ...]]] = {}
    affected = 0
    example = None
    for record in records:
        listed = _tools(record)
        if not listed:
            continue
        first_record, first_listed = first.setdefault(
            tuple(sorted(map(canonical, listed))), (record, listed)
        )
        if listed != first_listed:
            affected += 1
            i = next(
                i
                for i, pair in enumerate(zip(listed, first_listed, strict=True))
                if pair[0] != pair[1]
            )
            example = example or (
                place(record, TOOL, 0, f"{i + 1}: {listed[i]}"),
                place(first_record, TOOL, 0, f"{i + 1}: {first_listed[i]}"),
            )
    if affected < MIN_REQUESTS or example is None:
        return []
    finding = Finding(
        "L3",
        "tool definitions",
        "the same tools are listed in another order, or with their keys in another order",
        "sort the tools by name and write them with sorted keys",
        affected,
        example,
    )
    return [Detected(finding, lambda log: [_sorted_tools(record) for record in log])]


def find_key_order(records: Sequence[Record]) -> list[Detected]:
    """L3 for JSON inside messages: equal values, written with their keys in another order."""
    first: dict[str, tuple[Record, str, int, str]] = {}
    seen: dict[str, str] = {}
    affected = 0
    example = None
    for record in records:
        differs = False
        for _, segment, text in texts_of(record):
            for start, end, value in json_values(text):
                written = json.dumps(value, ensure_ascii=False)
                key = seen.setdefault(written, canonical(value))
                here = (record, segment.role, start, text[start:end])
                there = first.setdefault(key, here)
                if written != json.dumps(json.loads(there[3]), ensure_ascii=False):
                    differs = True
                    example = example or (_json_place(*here), _json_place(*there))
        affected += differs
    if affected < MIN_REQUESTS or example is None:
        return []
    finding = Finding(
        "L3",
        example[0].segment,
        "equal JSON is written with its keys in another order",
        "write JSON with sorted keys (json.dumps(..., sort_keys=True))",
        affected,
        example,
    )
    return [Detected(finding, lambda log: [with_texts(r, _sorted_json) for r in log])]


def find_changing_tools(records: Sequence[Record]) -> list[Detected]:
    """L4: a session's tools are not those of its turn before."""
    affected = 0
    example = None
    for record, parent in zip(records, parents(records), strict=True):
        if parent is None:
            continue
        before = set(map(canonical, _tools(records[parent])))
        now = set(map(canonical, _tools(record)))
        if before != now:
            affected += 1
            example = example or (
                place(record, TOOL, 0, f"{len(now)} tools: {_names(record)}"),
                place(records[parent], TOOL, 0, f"{len(before)} tools: {_names(records[parent])}"),
            )
    if affected < MIN_REQUESTS or example is None:
        return []
    finding = Finding(
        "L4",
        "tool definitions",
        "the tools change from one turn of a session to the next, ahead of the whole history",
        "offer all tools of a session in every turn, in one order; forbid calls by tool_choice",
        affected,
        example,
        "every turn lists all tools of its session",
    )
    return [Detected(finding, _with_session_tools)]


def canonical(value: Any) -> str:
    """JSON (text, or a value) with sorted keys and no blanks; other text as it is."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return str(value)
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def json_values(text: str) -> Iterator[tuple[int, int, Any]]:
    """(start, end, value) of each JSON object or array with more than a few characters in it."""
    decoder = json.JSONDecoder()
    after = 0
    for match in _OPENING.finditer(text):
        if match.start() < after:
            continue
        try:
            value, after = decoder.raw_decode(text, match.start())
        except (ValueError, RecursionError):
            continue
        if after - match.start() >= MIN_JSON_CHARACTERS:
            yield match.start(), after, value


def _tools(record: Record) -> tuple[str, ...]:
    return tuple(
        segment.content
        for segment in record.segments
        if segment.role == TOOL and isinstance(segment.content, str)
    )


def _names(record: Record) -> str:
    names = []
    for tool in _tools(record):
        value = json.loads(tool)
        value = value.get("function", value)
        names.append(str(value.get("name", "?")) if isinstance(value, dict) else "?")
    return ", ".join(names)


def _with_tools(record: Record, tools: Sequence[str]) -> Record:
    others = [segment for segment in record.segments if segment.role != TOOL]
    return replace(record, segments=(*(RecordSegment(TOOL, tool) for tool in tools), *others))


def _sorted_tools(record: Record) -> Record:
    tools = _tools(record)
    return _with_tools(record, sorted(map(canonical, tools))) if tools else record


def _with_session_tools(records: Sequence[Record]) -> list[Record]:
    root: list[int] = []
    offered: dict[int, dict[str, str]] = {}
    for i, (record, parent) in enumerate(zip(records, parents(records), strict=True)):
        root.append(i if parent is None else root[parent])
        for tool in _tools(record):
            offered.setdefault(root[i], {}).setdefault(canonical(tool), tool)
    return [
        _with_tools(record, list(offered[first].values())) if first in offered else record
        for record, first in zip(records, root, strict=True)
    ]


def _sorted_json(role: str, text: str) -> str:
    pieces = []
    after = 0
    for start, end, value in json_values(text):
        pieces += [text[after:start], json.dumps(value, sort_keys=True, ensure_ascii=False)]
        after = end
    return "".join([*pieces, text[after:]])


def _json_place(record: Record, role: str, start: int, text: str) -> Any:
    return place(record, role, start, text)
