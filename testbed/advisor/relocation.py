"""Moves varying parts of prompts behind the text that the prompts share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from testbed.advisor.findings import Finding, segment_name
from testbed.advisor.template import Slot, Template, Unit, UnitReader, align
from testbed.workloads.formats.record import Record, RecordSegment

MIN_ANCHORS = 0.5
"""Share of a template's anchors that a prompt of it has."""


END_OF_PROMPT = "behind the shared text, to the end of the last message"
"""Where a part goes that leaves its segment."""


class MovedPart(NamedTuple):
    """A finding and the part that stands in the way. across: it leaves its segment."""

    finding: Finding
    template: int
    slot: Slot
    num_values: int
    across: bool = False


@dataclass(frozen=True)
class Values:
    """L1, L2 and L11: what may stand in the way in each template, and how it is moved.

    repeated: the parts of each template that groups of prompts share. parts: the candidates; two
    findings may be about one part.
    """

    reader: UnitReader
    templates: list[Template]
    repeated: list[list[Slot]]
    parts: list[MovedPart]

    def moved(self, records: Sequence[Record], parts: Sequence[MovedPart]) -> list[Record]:
        """The requests with some of the parts behind their shared text, those of few values first.

        A part goes right behind the last shared text of its segment, or, across, to the end of
        the last message.
        """
        of_template: dict[int, list[MovedPart]] = {}
        for part in sorted(parts, key=lambda part: part.num_values):
            of_template.setdefault(part.template, []).append(part)
        return [self._moved_in(record, of_template) for record in records]

    def _moved_in(self, record: Record, of_template: dict[int, list[MovedPart]]) -> Record:
        prompt = self.reader.read(record)
        template = self._template_of(prompt)
        if template not in of_template:
            return record
        alignment = align(prompt, self.templates[template])
        repeated = self.templates[template].repeated
        # Of each segment: (start, end, what stands there instead).
        edits: dict[int, list[tuple[int, int, str]]] = {}
        shared = [unit for unit in alignment.anchors if unit is not None]
        shared += [
            unit for slot in self.repeated[template] for unit in slot.units(alignment, repeated)
        ]
        # Two findings may be about one part.
        slots = {part.slot: part.across for part in of_template[template]}
        for slot, across in slots.items():
            units = slot.units(alignment, repeated)
            if not units:
                continue
            source = units[0].segment
            target = len(record.segments) - 1 if across else source
            at = len(str(record.segments[target].content))
            if not across:
                at = max((unit.end for unit in shared if unit.segment == target), default=0)
            if target == source and at <= units[0].start:
                continue
            edits.setdefault(target, []).append((at, at, text_of(record, units)))
            for unit in units:
                edits.setdefault(unit.segment, []).append((unit.start, unit.end, ""))
        segments = list(record.segments)
        for i, changes in edits.items():
            text = _edited(str(segments[i].content), changes)
            segments[i] = RecordSegment(segments[i].role, text)
        return replace(record, segments=tuple(segments))

    def _template_of(self, prompt: Sequence[Unit]) -> int:
        """The template most of whose anchors the prompt has; -1 if none has half of them there."""
        keys = {unit.key for unit in prompt}
        shares = [
            sum(key in keys for key, _ in template.anchors) / max(len(template.anchors), 1)
            for template in self.templates
        ]
        best = max(range(len(shares)), key=shares.__getitem__, default=-1)
        return best if best >= 0 and shares[best] >= MIN_ANCHORS else -1


def carried_across(part: MovedPart) -> MovedPart:
    """The part with the prompt's end for its place; the finding says that it leaves its segment."""
    here = segment_name(part.slot.role)
    finding = replace(
        part.finding,
        mend=part.finding.mend.replace(behind_shared_text(part.slot.role), END_OF_PROMPT),
        content_changes=f"it moves from the {here} to the end of the last message",
    )
    return part._replace(finding=finding, across=True)


def behind_shared_text(role: str) -> str:
    """Where a part goes that stays in its segment."""
    return f"right behind the last text of the {segment_name(role)} that prompts share"


def text_of(record: Record, units: Sequence[Unit]) -> str:
    """What the units of a prompt say."""
    return "".join(str(record.segments[u.segment].content)[u.start : u.end] for u in units)


def _edited(text: str, changes: list[tuple[int, int, str]]) -> str:
    inserted = "".join(_line(piece) for _, _, piece in changes if piece)
    for start, end, piece in sorted(changes, key=lambda change: change[:2], reverse=True):
        if start < end:
            text = text[:start] + text[end:]
        elif piece:
            head, tail = text[:start], text[start:]
            text = head + ("\n" if head and not head.endswith("\n") else "") + inserted + tail
            inserted = ""
    return text


def _line(piece: str) -> str:
    return piece if piece.endswith("\n") else piece.rstrip() + "\n"
