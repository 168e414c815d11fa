"""Which request is the next turn of which: by the log's sessions, else by what it repeats."""

from __future__ import annotations

from collections.abc import Sequence

from testbed.advisor.text import normal
from testbed.workloads.formats.record import PROMPT, TOOL, Record

PREAMBLE = (TOOL, "system", "developer")
"""Roles of segments that are no messages of a conversation."""


def messages(record: Record) -> list[tuple[str, str]]:
    """(role, normal text) of the conversation's messages; none where they are not marked."""
    return [
        (segment.role, normal(segment.content))
        for segment in record.segments
        if segment.role not in PREAMBLE
        and segment.role != PROMPT
        and isinstance(segment.content, str)
    ]


def parents(records: Sequence[Record]) -> list[int | None]:
    """For each request the position of the turn before it, or None.

    That is the latest request of the same session; without sessions the latest one whose last
    message stands, not last, among its messages.
    """
    found: list[int | None] = []
    by_session: dict[tuple[str, str], int] = {}
    by_last_message: dict[tuple[str, str], int] = {}
    for i, record in enumerate(records):
        said = messages(record)
        if record.session is not None:
            found.append(by_session.get((record.client, record.session)))
            by_session[record.client, record.session] = i
            continue
        earlier = (by_last_message[m] for m in reversed(said[:-1]) if m in by_last_message)
        found.append(next(earlier, None))
        if said:
            by_last_message[said[-1]] = i
    return found
