"""Chat logs in OpenAI's message format, a request a line, and its batch files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from testbed.workloads.formats.fields import (
    Fields,
    first_present,
    length,
    require_object,
    shown,
    text,
)
from testbed.workloads.formats.origin import arrival_of, client_of, session_of
from testbed.workloads.formats.prompts import prompt_record
from testbed.workloads.formats.record import TOOL, Record, RecordSegment

LIMIT_NAMES = ("max_completion_tokens", "max_tokens")


def chat_record(line: int, fields: Fields) -> Record:
    """A request with `messages`, and optionally `tools`, `user`, `metadata`, `response`, `usage`.

    Client, session and arrival are looked for in the line and in its `metadata`, under the usual
    names; a name with the suffix `_ms` is in milliseconds. The output is that of `response` (a text
    or a chat completion), else a last message of the assistant. Its length is that of
    `usage.completion_tokens`, else the text is counted, else the limit stands for it.
    Source: platform.openai.com/docs/api-reference/chat.
    """
    messages = fields.get("messages")
    if not isinstance(messages, list) or not messages:
        what = "empty" if messages == [] else shown(messages)
        raise ValueError(f"messages is {what}; a list of at least one message is needed")
    asked = [_message(message, i) for i, message in enumerate(messages)]
    output, usage = _answer(fields)
    if output is None and asked[-1].role == "assistant" and len(asked) > 1:
        output = str(asked.pop().content) or None
    if not any(segment.content for segment in asked):
        raise ValueError("messages are all empty; a prompt needs some text")
    tools = [_tool(tool, i) for i, tool in enumerate(_listed(fields, "tools"))]
    return Record(
        line,
        (*tools, *asked),
        client=client_of(fields),
        session=session_of(fields),
        turn=sum(segment.role == "assistant" for segment in asked),
        arrival=arrival_of(fields),
        output=output,
        output_length=_output_length(fields, usage, output),
    )


def batch_record(line: int, fields: Fields) -> Record:
    """A line of a batch file: `custom_id` and `body`, for chat or plain completions.

    Source: platform.openai.com/docs/guides/batch; vLLM's run_batch reads the same.
    """
    body = require_object(fields.get("body"), "body")
    return chat_record(line, body) if "messages" in body else prompt_record(line, body)


def _message(message: Any, index: int) -> RecordSegment:
    name = f"messages[{index}]"
    fields = require_object(message, name)
    role = text(fields.get("role"), f"{name}.role")
    if not role:
        raise ValueError(f"{name}.role is empty; system, user, assistant, tool ... is needed")
    content = _content(fields.get("content"), f"{name}.content")
    calls = [
        _compact(call.get("function", call) if isinstance(call, dict) else call)
        for call in _listed(fields, "tool_calls")
    ]
    return RecordSegment(role, "\n".join([content, *calls] if content else calls))


def _content(content: Any, name: str) -> str:
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


def _tool(tool: Any, index: int) -> RecordSegment:
    return RecordSegment(TOOL, _compact(require_object(tool, f"tools[{index}]")))


def _compact(value: Any) -> str:
    return text(json.dumps(value, ensure_ascii=False, separators=(",", ":")), "a tool")


def _listed(fields: Fields, name: str) -> Sequence[Any]:
    value = fields.get(name)
    if value is not None and not isinstance(value, list):
        raise ValueError(f"{name} is {shown(value)}; a list is needed")
    return value or ()


def _answer(fields: Fields) -> tuple[str | None, Fields]:
    """The logged answer, and the usage that was counted with it."""
    usage = require_object(fields.get("usage") or {}, "usage")
    response = fields.get("response")
    if response is None or isinstance(response, str):
        return (text(response, "response") or None) if response else None, usage
    completion = require_object(response, "response")
    completion = require_object(completion.get("body", completion), "response.body")
    choices = _listed(completion, "choices")
    if not choices:
        raise ValueError("response has no choices; a text or a chat completion is needed")
    message = require_object(require_object(choices[0], "choices[0]").get("message"), "message")
    answer = str(_message({"role": "assistant", **message}, 0).content)
    return answer or None, require_object(completion.get("usage") or usage, "usage")


def _output_length(fields: Fields, usage: Fields, output: str | None) -> int | None:
    if usage.get("completion_tokens"):
        return length(usage, "completion_tokens")
    if output is not None:
        return None
    name = first_present(fields, LIMIT_NAMES)
    return None if name is None else length(fields, name)
