"""ShareGPT conversations: every answer in one is a request whose prompt is all before it."""

from __future__ import annotations

from collections.abc import Iterator

from testbed.workloads.formats.fields import Fields, first_present, label, require_object, text
from testbed.workloads.formats.origin import client_of, session_of
from testbed.workloads.formats.record import Record, RecordSegment

ROLES = {
    "human": "user",
    "user": "user",
    "system": "system",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "assistant": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "tool": "tool",
    "function_call": "assistant",
    "observation": "tool",
}
"""The chat role of each speaker."""


CONVERSATION_NAMES = ("conversations", "conversation")


def conversation_records(line: int, fields: Fields) -> Iterator[Record]:
    """The requests of one entry with `conversations`, a list of `from` and `value`.

    `conversation`, `role` and `content` are read too (SGLang's custom data set). An entry in which
    nobody answers anything is an error, at once. vLLM and SGLang benchmark the first answer alone.
    """
    name = first_present(fields, CONVERSATION_NAMES) or CONVERSATION_NAMES[0]
    turns = fields.get(name)
    if not isinstance(turns, list) or not turns:
        raise ValueError(f"{name} is empty; a list of at least two turns is needed")
    said = [_turn(turn, f"{name}[{i}]") for i, turn in enumerate(turns)]
    answers = [i for i, turn in enumerate(said) if turn.role == "assistant" and i > 0]
    if not answers:
        raise ValueError(f"{name} has no answer; a turn of gpt after another is needed")
    has_id = fields.get("id") not in (None, "")
    named = label(fields["id"], "id") if has_id else session_of(fields)
    client = client_of(fields)
    # One at a time: the prompts of a long conversation together grow with its square.
    return (
        Record(
            line,
            tuple(said[:i]),
            client=client,
            session=named or f"line {line}",
            turn=turn,
            output=said[i].content or None,
        )
        for turn, i in enumerate(answers)
    )


def _turn(turn: object, name: str) -> RecordSegment:
    fields = require_object(turn, name)
    speaker = text(fields.get(first_present(fields, ("from", "role")) or "from"), f"{name}.from")
    if speaker not in ROLES:
        raise ValueError(f"{name}.from is {speaker!r}; one of {', '.join(ROLES)} is needed")
    said = first_present(fields, ("value", "content")) or "value"
    return RecordSegment(ROLES[speaker], text(fields.get(said), f"{name}.{said}"))
