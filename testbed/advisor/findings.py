"""What a lint rule reports, and how its mend is applied to a log."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from testbed.workloads.formats.record import TOOL, Record, RecordSegment

RuleId = Literal["L1", "L2", "L3", "L4", "L5", "L6", "L7", "L8", "L9", "L10", "L11"]

RULES: dict[RuleId, str] = {
    "L1": "timestamp or id early in the prompt",
    "L2": "user or tenant field ahead of shared text",
    "L3": "unstable order of tools or JSON keys",
    "L4": "tools change within a session",
    "L5": "history rewritten or cut from the front",
    "L6": "same chunks in another order",
    "L7": "white space or Unicode drift",
    "L8": "shared text ends within a token or page",
    "L9": "shared prefix too short to be cached",
    "L10": "few-shot examples sampled per request",
    "L11": "varying text ahead of shared text",
}
"""The lint rules by id."""

MIN_REQUESTS = 3
"""A fault that fewer requests of the sample show is not reported."""
MAX_SHOWN = 80


@dataclass(frozen=True)
class Place:
    """Where a text stands: its line in the file, the segment, the character in the segment."""

    line: int
    segment: str
    character: int
    text: str


@dataclass(frozen=True)
class Finding:
    """One lint rule that fired.

    where: the part of the prompt. problem, mend: a sentence each. requests: how many of the sample
    show it. example: two places that should have been the same or stand elsewhere. content_changes:
    what the mend does to what the model reads; empty if nothing but the order.
    """

    rule: RuleId
    where: str
    problem: str
    mend: str
    requests: int
    example: tuple[Place, Place]
    content_changes: str = ""

    @property
    def title(self) -> str:
        """The rule in words."""
        return RULES[self.rule]


Mend = Callable[[Sequence[Record]], list[Record]]
"""Rewrites requests as if the template had been mended; lines and order stay."""


class Detected(NamedTuple):
    """A finding and its mend."""

    finding: Finding
    mend: Mend


def texts_of(record: Record) -> Iterator[tuple[int, RecordSegment, str]]:
    """(position, segment, text) of the segments that are text, tool definitions left out."""
    for i, segment in enumerate(record.segments):
        if segment.role != TOOL and isinstance(segment.content, str):
            yield i, segment, segment.content


def with_texts(record: Record, rewrite: Callable[[str, str], str]) -> Record:
    """The record with rewrite(role, text) in place of every text but tool definitions."""
    segments = list(record.segments)
    changed = False
    for i, segment, text in texts_of(record):
        new = rewrite(segment.role, text)
        if new != text:
            segments[i] = RecordSegment(segment.role, new)
            changed = True
    return replace(record, segments=tuple(segments)) if changed else record


def segment_name(role: str) -> str:
    """A segment's role as a page shows it."""
    names = {TOOL: "tool definitions", "prompt": "prompt"}
    return names.get(role, f"{role} message")


def place(record: Record, role: str, character: int, text: str) -> Place:
    """A place whose text is cut to what fits a line."""
    shown = text.strip()
    if len(shown) > MAX_SHOWN:
        shown = shown[: MAX_SHOWN - 3] + "..."
    return Place(record.line, segment_name(role), character, shown)
