"""Chat logs in OpenAI's message format, a request a line, and its batch files."""

from __future__ import annotations

import json
from collections import ChainMap
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
from testbed.workloads.formats.messages import content_text, system_segments
from testbed.workloads.formats.origin import arrival_of, client_of, session_of
from testbed.workloads.formats.prompts import prompt_record
from testbed.workloads.formats.record import TOOL, Record, RecordSegment

LIMIT_NAMES = ("max_completion_tokens", "max_tokens")


def chat_record(line: int, fields: Fields) -> Record:
    """A request with `messages`, and optionally `tools`, `user`, `metadata`, `response`, `usage`.

    `functions` are tools; `system` and `instructions` stand before the messages. Client, session
    and arrival are looked for in the line and in its `metadata`, under the usual names; a name with
    the suffix `_ms` is in milliseconds. The output is that of `response` (a text or a chat
    completion), else a last message of the assistant. Its length is that of
    `usage.completion_tokens`, else the text is counted, else the limit stands for it.
    Source: platform.openai.com/docs/api-reference/chat (and its legacy fields); Anthropic's and
    OpenAI's responses for the system prompt outside the messages.
    """
    messages = fields.get("messages")
    if not isinstance(messages, list) or not messages:
        what = "empty" if messages == [] else shown(messages)
        raise ValueError(f"messages is {what}; a list of at least one message is needed")
    asked = [*system_segments(fields), *(_message(m, i) for i, m in enumerate(messages))]
    output, usage = _answer(fields)
    if output is None and asked[-1].role == "assistant" and len(asked) > 1:
        output = str(asked.pop().content) or None
    if not any(segment.content for segment in asked):
        raise ValueError("messages are all empty; a prompt needs some text")
    tools = [
        RecordSegment(TOOL, _compact(require_object(tool, f"{name}[{i}]"), f"{name}[{i}]"))
        for name in ("tools", "functions")
        for i, tool in enumerate(_listed(fields, name))
    ]
    arrival, clock = arrival_of(fields)
    return Record(
        line,
        (*tools, *asked),
        client=client_of(fields),
        session=session_of(fields),
        turn=sum(segment.role == "assistant" for segment in asked),
        arrival=arrival,
        clock=clock,
        output=output,
        output_length=_output_length(fields, usage, output),
    )


def batch_record(line: int, fields: Fields) -> Record:
    """A line of a batch file: `custom_id` and `body`, for chat or plain completions.

    What a log adds outside the body (client, time, metadata, response, usage) is read as well; the
    body has precedence. Source: platform.openai.com/docs/guides/batch; vLLM's run_batch reads the
    same.
    """
    body = require_object(fields.get("body"), "body")
    merged = {name: value for name, value in fields.items() if name != "body"} | body
    places = [place.get("metadata") for place in (fields, body)]
    known = [require_object(place, "metadata") for place in places if place is not None]
    if known:
        merged["metadata"] = dict(ChainMap(*reversed(known)))
    return chat_record(line, merged) if "messages" in body else prompt_record(line, merged)


def _message(message: Any, index: int) -> RecordSegment:
    name = f"messages[{index}]"
    fields = require_object(message, name)
    role = text(fields.get("role"), f"{name}.role")
    if not role:
        raise ValueError(f"{name}.role is empty; system, user, assistant, tool ... is needed")
    content = content_text(fields.get("content"), f"{name}.content")
    made = [
        call.get("function", call) if isinstance(call, dict) else call
        for call in _listed(fields, "tool_calls")
    ]
    if fields.get("function_call") is not None:
        made.append(fields["function_call"])
    calls = [_compact(call, f"a call of {name}") for call in made]
    return RecordSegment(role, "\n".join([content, *calls] if content else calls))


def _compact(value: Any, name: str) -> str:
    try:
        written = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    except RecursionError:
        raise ValueError(f"{name} is nested too deep") from None
    return text(written, name)


def _listed(fields: Fields, name: str) -> Sequence[Any]:
    value = fields.get(name)
    if value is not None and not isinstance(value, list):
        raise ValueError(f"{name} is {shown(value)}; a list is needed")
    return value or ()


def _answer(fields: Fields) -> tuple[str | None, Fields]:
    """The logged answer, and the usage that was counted with it."""
    usage = _usage(fields, {})
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
    return answer or None, _usage(completion, usage)


def _usage(fields: Fields, otherwise: Fields) -> Fields:
    usage = fields.get("usage")
    return otherwise if usage is None else require_object(usage, "usage")


def _output_length(fields: Fields, usage: Fields, output: str | None) -> int | None:
    counted = usage.get("completion_tokens")
    if counted is not None:
        name = "usage.completion_tokens"
        return length({name: counted}, name)
    if output is not None:
        return None
    limit = first_present(fields, LIMIT_NAMES)
    return None if limit is None else length(fields, limit)
