"""Text of chat messages: their content, and the system prompt that stands outside them."""

from __future__ import annotations

from typing import Any

from testbed.workloads.formats.fields import Fields, require_object, shown, text
from testbed.workloads.formats.record import RecordSegment


def system_segments(fields: Fields) -> list[RecordSegment]:
    """The system prompt that stands outside the messages, under `system` or `instructions`."""
    said = [content_text(fields.get(name), name) for name in ("system", "instructions")]
    return [RecordSegment("system", content) for content in said if content]


def content_text(content: Any, name: str) -> str:
    """Text, text parts joined, or none; anything else cannot be counted in tokens of text."""
    if content is None:
        return ""
    if not isinstance(content, list):
        return text(content, name)
    parts = []
    for i, part in enumerate(content):
        where = f"{name}[{i}]"
        fields = require_object(part, where)
        if fields.get("type") not in ("text", "input_text", "output_text"):
            raise ValueError(f"{where}.type is {shown(fields.get('type'))}; only text is read")
        parts.append(text(fields.get("text"), f"{where}.text"))
    return "".join(parts)
