"""Prompts that their file does not divide: text or token ids, and benchmarks' request files."""

from __future__ import annotations

from typing import Any

from testbed.workloads.formats.fields import (
    Fields,
    first_present,
    length,
    require_object,
    shown,
    text,
    token_ids,
)
from testbed.workloads.formats.messages import system_segments
from testbed.workloads.formats.origin import arrival_of, client_of, session_of
from testbed.workloads.formats.record import PROMPT, Content, Record, RecordSegment

PROMPT_NAMES = ("prompt", "text", "input")
TOKEN_NAMES = ("prompt_token_ids", "input_ids", "input_tok_ids")
OUTPUT_NAMES = ("output_tok_ids", "output_token_ids", "output", "completion")
OUTPUT_LENGTH_NAMES = (
    "output_length",
    "output_len",
    "output_tokens",
    "expected_output_len",
    "output_toks",
    "max_new_tokens",
    "max_tokens",
)


def prompt_record(line: int, fields: Fields) -> Record:
    """A request with `prompt` (also `text`, `input`: a text or token ids) or `prompt_token_ids`.

    Reads vLLM's custom data set (`prompt`, `output_tokens`), bodies of its completions and of
    SGLang's `generate` (`text` or `input_ids`, `sampling_params.max_new_tokens`), LMBenchmark
    (`input`, `output_length`) and LLMServingSim (`input_tok_ids`, `output_tok_ids`,
    `arrival_time_ns`). A text with `system` or `instructions` (OpenAI's responses) is a chat of two
    messages.
    """
    name = first_present(fields, TOKEN_NAMES) or first_present(fields, PROMPT_NAMES)
    if name is None:
        raise ValueError(f"no prompt; one of {', '.join((*PROMPT_NAMES, *TOKEN_NAMES))} is needed")
    prompt = _content(fields[name], name)
    if len(prompt) == 0:
        raise ValueError(f"{name} is empty; a prompt needs some text")
    _require_count(fields, "input_toks", prompt)
    segments = [RecordSegment(PROMPT, prompt)]
    if system := system_segments(fields):
        if not isinstance(prompt, str):
            raise ValueError(f"{name} is token ids beside a system prompt; one of them is needed")
        segments = [*system, RecordSegment("user", prompt)]
    output_name = first_present(fields, OUTPUT_NAMES)
    output = None if output_name is None else _content(fields[output_name], output_name)
    limits = [fields]
    if fields.get("sampling_params") is not None:
        limits.append(require_object(fields["sampling_params"], "sampling_params"))
    arrival, clock = arrival_of(fields)
    return Record(
        line,
        tuple(segments),
        client=client_of(fields),
        session=session_of(fields),
        arrival=arrival,
        clock=clock,
        output=None if output is None or len(output) == 0 else output,
        output_length=_output_length(limits, output),
    )


def text_record(line: int, prompt: str) -> Record:
    """A prompt that is a line of a plain text file."""
    return Record(line, (RecordSegment(PROMPT, prompt),))


def token_ids_record(line: int, ids: Any) -> Record:
    """A prompt that is a list of token ids."""
    return Record(line, (RecordSegment(PROMPT, token_ids(ids, "the prompt")),))


def _content(value: Any, name: str) -> Content:
    if isinstance(value, list) and any(isinstance(item, str) for item in value):
        raise ValueError(f"{name} is a list of texts; one prompt a line is needed")
    return token_ids(value, name) if isinstance(value, list) else text(value, name)


def _require_count(fields: Fields, name: str, prompt: Content) -> None:
    if not isinstance(prompt, str) and fields.get(name, len(prompt)) != len(prompt):
        raise ValueError(f"{name} is {shown(fields[name])}, but {len(prompt)} tokens are there")


def _output_length(places: list[Fields], output: Content | None) -> int | None:
    if output is not None and len(output):
        return None
    for place in places:
        if name := first_present(place, OUTPUT_LENGTH_NAMES):
            return length(place, name)
    return None
