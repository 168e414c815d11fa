"""ShareGPT conversations: every answer in one is a request whose prompt is all before it."""

from __future__ import annotations

from testbed.workloads.formats.fields import Fields, first_present, label, require_object, text
from testbed.workloads.formats.origin import client_of
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


def conversation_records(line: int, fields: Fields) -> list[Record]:
    """The requests of one entry with `conversations`, a list of `from` and `value`.

    `role` and `content` are read too (SGLang's custom data set). An entry in which nobody answers
    anything is an error. vLLM and SGLang benchmark the first answer alone.
    """
    turns = fields.get("conversations")
    if not isinstance(turns, list) or not turns:
        raise ValueError("conversations is empty; a list of at least two turns is needed")
    said = [_turn(turn, i) for i, turn in enumerate(turns)]
    session = label(fields["id"], "id") if fields.get("id") is not None else f"line {line}"
    answers = [i for i, turn in enumerate(said) if turn.role == "assistant" and i > 0]
    if not answers:
        raise ValueError("conversations has no answer; a turn of gpt after another is needed")
    return [
        Record(
            line,
            tuple(said[:i]),
            client=client_of(fields),
            session=session,
            turn=turn,
            output=said[i].content or None,
        )
        for turn, i in enumerate(answers)
    ]


def _turn(turn: object, index: int) -> RecordSegment:
    name = f"conversations[{index}]"
    fields = require_object(turn, name)
    speaker = text(fields.get(first_present(fields, ("from", "role")) or "from"), f"{name}.from")
    if speaker not in ROLES:
        raise ValueError(f"{name}.from is {speaker!r}; one of {', '.join(ROLES)} is needed")
    said = first_present(fields, ("value", "content")) or "value"
    return RecordSegment(ROLES[speaker], text(fields.get(said), f"{name}.{said}"))
