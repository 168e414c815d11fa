"""Lint rules L1, L2 and L11: values that differ between prompts, ahead of text that they share."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from testbed.advisor.findings import (
    MIN_REQUESTS,
    Finding,
    Place,
    RuleId,
    place,
    segment_name,
)
from testbed.advisor.relocation import MovedPart, Values, behind_shared_text, text_of
from testbed.advisor.sessions import PREAMBLE, parents
from testbed.advisor.template import (
    Part,
    Template,
    UnitReader,
    find_templates,
    parts_of,
)
from testbed.advisor.text import IDENTIFIER, TIME, USER_FIELD
from testbed.metrics.template_order import SegmentColumn
from testbed.workloads.formats.record import TOOL, Record
from testbed.workloads.tokenize import Tokenizer

MAX_TEMPLATES = 8
MAX_REPEATED = 0.25
"""Values of a part by prompts, up to which it counts as shared by groups of prompts."""
MIN_NEW = 0.5
"""Values of a part by prompts, from which on it counts as new in every request."""
MIN_LONG = 16
"""Tokens from which a text that is new in every request counts as a text, not as a value."""

PATTERNS: dict[RuleId, tuple[re.Pattern[str], ...]] = {
    "L1": (TIME, IDENTIFIER),
    "L2": (USER_FIELD,),
}


@dataclass(frozen=True)
class Columns:
    """A template's parts, and what each of its prompts puts into them."""

    template: Template
    parts: list[Part]
    texts: list[list[str]]
    columns: list[SegmentColumn]

    @property
    def last_constant(self) -> int:
        """Position of the last constant part; -1 without any."""
        return max((i for i, part in enumerate(self.parts) if part.slot is None), default=-1)

    @property
    def repeated(self) -> list[int]:
        """Long varying parts each value of which several prompts have: shared text of a group."""
        most = len(self.template.prompts) * MAX_REPEATED
        return [
            i
            for i, part in enumerate(self.parts)
            if part.slot is not None
            and part.slot.half != "new"
            and (part.slot.half or self.num_values(i) <= most)
            and float(self.columns[i].tokens.mean()) >= MIN_LONG
        ]

    @property
    def is_conversation(self) -> bool:
        """Whether prompts hold earlier turns, which stay where they are."""
        return any(part.role == "assistant" for part in self.parts)

    def num_values(self, part: int) -> int:
        """How many different values the part has."""
        return len(set(self.texts[part]))


def read_columns(
    records: Sequence[Record], tokenizer: Tokenizer
) -> tuple[UnitReader, list[Columns]]:
    """The templates behind the prompts, as columns, the most used first."""
    reader = UnitReader()
    prompts = [reader.read(record) for record in records]
    found = []
    for template in find_templates(prompts)[:MAX_TEMPLATES]:
        parts = parts_of(template, prompts)
        texts = [
            [
                text_of(records[i], units)
                for i, units in zip(template.prompts, part.units, strict=True)
            ]
            for part in parts
        ]
        columns = [_column(part, own, tokenizer) for part, own in zip(parts, texts, strict=True)]
        found.append(Columns(template, parts, texts, columns))
    return reader, found


def find_values(
    records: Sequence[Record], reader: UnitReader, all_columns: Sequence[Columns]
) -> Values:
    """Candidates for L1, L2 and L11 in what `read_columns` found: parts ahead of shared text."""
    before = parents(records)
    parts = [
        MovedPart(finding, number, slot, columns.num_values(i))
        for number, columns in enumerate(all_columns)
        for i in _ahead_of_shared_text(columns, _restless(columns, before))
        if (slot := columns.parts[i].slot) is not None
        for finding in _findings(columns, i, records)
    ]
    repeated = [
        [slot for i in columns.repeated if (slot := columns.parts[i].slot) is not None]
        for columns in all_columns
    ]
    return Values(reader, [columns.template for columns in all_columns], repeated, parts)


def _column(part: Part, texts: Sequence[str], tokenizer: Tokenizer) -> SegmentColumn:
    numbers: dict[str, int] = {}
    values = np.array([numbers.setdefault(text, len(numbers)) for text in texts])
    if part.slot is None:
        # Anchors are alike but for spelling, and missing here and there: constants all the same.
        values[:] = 0
    lengths = np.array([len(ids) for ids in tokenizer.encode(list(numbers))])
    tokens = lengths[values]
    return SegmentColumn(segment_name(part.role), values, tokens)


def _restless(columns: Columns, before: Sequence[int | None]) -> set[int]:
    """Parts ahead of the conversation that change from one turn of a session to the next."""
    position = {record: i for i, record in enumerate(columns.template.prompts)}
    turns = [
        (i, position[parent])
        for record, i in position.items()
        if (parent := before[record]) is not None and parent in position
    ]
    return {
        part
        for part, own in enumerate(columns.parts)
        if own.slot is not None
        and own.role in PREAMBLE
        and own.role != TOOL
        and sum(columns.texts[part][i] != columns.texts[part][j] for i, j in turns) >= MIN_REQUESTS
    }


def _ahead_of_shared_text(columns: Columns, restless: set[int]) -> list[int]:
    """Varying parts with text behind them that more prompts share, in order."""
    last = max(columns.last_constant, *columns.repeated, -1)
    new = len(columns.template.prompts) * MIN_NEW
    return [
        i
        for i, part in enumerate(columns.parts)
        if part.slot is not None
        and part.role != TOOL
        and (part.role in PREAMBLE or not columns.is_conversation)
        and part.slot.half != "repeated"
        and columns.num_values(i) > 1
        # Parts of few values need not change places with each other.
        and (
            i in restless
            or i < columns.last_constant
            or (i < last and columns.num_values(i) >= new)
        )
    ]


def _findings(columns: Columns, part: int, records: Sequence[Record]) -> list[Finding]:
    where = segment_name(columns.parts[part].role)
    count = f"{columns.num_values(part):,}"
    affected = sum(bool(text) for text in columns.texts[part])
    tokens = f"{columns.columns[part].tokens.mean():,.0f}"
    subjects = {
        "L1": f"a value that changes with the request ({count} values)",
        "L2": f"a field of the user or tenant ({count} values)",
        "L11": f"a part of {tokens} tokens with {count} values",
    }
    behind = behind_shared_text(columns.parts[part].role)
    mends = {
        "L1": f"drop it, or move it {behind}",
        "L2": f"move it {behind}",
        "L11": f"put the shared text first: move it {behind}",
    }
    example = _example(columns, part, records)
    return [
        Finding(
            rule,
            where,
            f"{subjects[rule]} stands ahead of text that prompts share",
            mends[rule],
            affected,
            example,
        )
        for rule in _causes(columns, part, records)
    ]


def _causes(columns: Columns, part: int, records: Sequence[Record]) -> list[RuleId]:
    """Which rules the part breaks, told by what is left of its values when patterns are masked."""
    values = list(dict.fromkeys(columns.texts[part]))
    everything = tuple(pattern for patterns in PATTERNS.values() for pattern in patterns)
    unexplained = len(_masked(values, everything))
    found: list[RuleId] = []
    for rule, patterns in PATTERNS.items():
        others = tuple(pattern for pattern in everything if pattern not in patterns)
        if len(_masked(values, others)) > unexplained:
            found.append(rule)
    if not found and unexplained < len(values):
        found.append("L1")
    if not found and _follows_the_client(columns, part, records):
        found.append("L2")
    if not found:
        new = len(values) >= len(columns.texts[part]) / 2
        short = float(columns.columns[part].tokens.mean()) < MIN_LONG
        found.append("L1" if new and short else "L11")
    return found


def _masked(values: Sequence[str], patterns: Sequence[re.Pattern[str]]) -> set[str]:
    for pattern in patterns:
        values = [pattern.sub("\0", value) for value in values]
    return set(values)


def _follows_the_client(columns: Columns, part: int, records: Sequence[Record]) -> bool:
    """Whether each client has a value of its own, the same in all its requests."""
    of_client: dict[str, set[str]] = {}
    for i, text in zip(columns.template.prompts, columns.texts[part], strict=True):
        of_client.setdefault(records[i].client, set()).add(text)
    values = [next(iter(texts)) for texts in of_client.values() if len(texts) == 1]
    return 1 < len(of_client) < len(columns.texts[part]) and len(set(values)) == len(of_client)


def _example(columns: Columns, part: int, records: Sequence[Record]) -> tuple[Place, Place]:
    texts = columns.texts[part]
    one = next(i for i, text in enumerate(texts) if text)
    other = next(i for i, text in enumerate(texts) if text != texts[one])

    def shown(i: int) -> Place:
        record = records[columns.template.prompts[i]]
        units = columns.parts[part].units[i]
        start = units[0].start if units else 0
        return place(record, columns.parts[part].role, start, texts[i])

    return shown(other), shown(one)
