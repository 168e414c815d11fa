"""Lint rule L5: a turn's prompt does not begin with the prompt of the turn before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from testbed.advisor.findings import MIN_REQUESTS, Detected, Finding, place
from testbed.advisor.sessions import PREAMBLE, messages, parents
from testbed.advisor.text import IDENTIFIER, TIME
from testbed.workloads.formats.record import Record, RecordSegment

MIN_REPEATED = 0.3
"""Share of the earlier turn's later messages that a turn must still send, moved."""

NEW_VALUE = "sent again with another time or id in it"

Said = list[tuple[str, str]]


def find_rewritten_history(records: Sequence[Record]) -> list[Detected]:
    """L5, at most once."""
    affected = 0
    kinds: Counter[str] = Counter()
    example = None
    for record, parent in zip(records, parents(records), strict=True):
        if parent is None:
            continue
        before, now = messages(records[parent]), messages(record)
        at = _rewritten_from(before, now)
        if at is None:
            continue
        affected += 1
        kinds[_kind(before, now, at)] += 1
        example = example or (
            place(record, now[at][0], 0, f"message {at + 1}: {now[at][1]}"),
            place(records[parent], before[at][0], 0, f"message {at + 1}: {before[at][1]}"),
        )
    if affected < MIN_REQUESTS or example is None:
        return []
    finding = Finding(
        "L5",
        "history",
        f"the history is {' and '.join(sorted(kinds))}, so what follows it is computed anew",
        "write a time or id into a message once, and send the message unchanged from then on"
        if set(kinds) == {NEW_VALUE}
        else "append only: keep earlier turns as they were sent, and cut rarely and by a lot",
        affected,
        example,
        "turns keep the value that was sent first"
        if set(kinds) == {NEW_VALUE}
        else "turns keep what was cut, and prompts grow",
    )
    return [Detected(finding, _with_whole_history)]


def _kind(before: Said, now: Said, at: int) -> str:
    """What was done to the message that changed."""
    if now[at] in before[at:]:
        return "cut from the front"
    if _without_values(before[at : at + 1]) == _without_values(now[at : at + 1]):
        return NEW_VALUE
    return "rewritten or summarised"


def _without_values(said: Said) -> Said:
    """The messages with times and ids left out."""
    return [(role, IDENTIFIER.sub("", TIME.sub("", text))) for role, text in said]


def _rewritten_from(before: Said, now: Said) -> int | None:
    """The first message that changed though later ones of the earlier turn are sent again."""
    shared = _common(before, now)
    # The last message alone may differ: the turn was tried again, or the session branched.
    if shared >= len(before) - 1 or shared >= len(now):
        return None
    later = _without_values(before[shared:])
    moved = set(_without_values(now[shared:]))
    again = sum(len(text) for role, text in later if (role, text) in moved)
    return shared if again >= MIN_REPEATED * max(sum(len(t) for _, t in later), 1) else None


def _common(before: Said, now: Said) -> int:
    count = 0
    for one, other in zip(before, now, strict=False):
        if one != other:
            break
        count += 1
    return count


def _with_whole_history(records: Sequence[Record]) -> list[Record]:
    mended: list[Record] = []
    for record, parent in zip(records, parents(records), strict=True):
        if parent is not None:
            before, now = messages(records[parent]), messages(record)
            if _rewritten_from(before, now) is not None:
                known = set(_without_values(before))
                said = enumerate(_without_values(now))
                new = max((i + 1 for i, one in said if one in known), default=0)
                record = replace(
                    record,
                    segments=(
                        *_preamble(record),
                        *_conversation(mended[parent]),
                        *_conversation(record)[new:],
                    ),
                )
        mended.append(record)
    return mended


def _preamble(record: Record) -> list[RecordSegment]:
    return [segment for segment in record.segments if segment.role in PREAMBLE]


def _conversation(record: Record) -> list[RecordSegment]:
    return [segment for segment in record.segments if segment.role not in PREAMBLE]
