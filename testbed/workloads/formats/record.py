"""Record: one logged request as its file tells it, before anything is turned into tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from testbed.core.request import Tokens

Content: TypeAlias = str | Tokens
"""Text, or int32 token ids where the file holds those."""

TOOL = "tool_definition"
"""Role of a segment that defines one tool: its JSON, keys in the order of the log."""

PROMPT = "prompt"
"""Role of a prompt that its file does not divide: it is sent as it stands, with no chat markers."""


@dataclass(frozen=True, slots=True)
class RecordSegment:
    """One piece of a prompt.

    role: `tool_definition`, a chat role (system, developer, user, assistant, tool ...) or `prompt`.
    content: never None; a message may be empty. Calls that an assistant made follow its text, as
    JSON.
    """

    role: str
    content: Content


@dataclass(frozen=True, slots=True)
class Record:
    """One request of a file.

    line: where it stands, from 1: the line, or the line that its entry of a JSON array begins at.
    segments: the prompt in order, tool definitions first; empty where the file has lengths alone.
    prompt_length: tokens of the prompt, where the file counts them; always known without segments.
    client: who asked (`default` if nobody is named). session: the conversation it belongs to.
    turn: how many answers its prompt holds already, where the file tells, else 0.
    arrival: seconds, in the file's own reckoning (from its start, or since 1970); None if not told.
    clock: the field that told it, and how: one for all requests of a file. output: what was
    generated. output_length: tokens generated as the log counts them, or else, without an output,
    the limit that was set; None where the file tells neither, or the output is to be counted.
    """

    line: int
    segments: tuple[RecordSegment, ...]
    prompt_length: int | None = None
    client: str = "default"
    session: str | None = None
    turn: int = 0
    arrival: float | None = None
    clock: str | None = None
    output: Content | None = None
    output_length: int | None = None
