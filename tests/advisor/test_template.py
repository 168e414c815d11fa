"""Templates by alignment, and the moving of their varying parts."""

from __future__ import annotations

from testbed.advisor.relocation import Values
from testbed.advisor.rules_values import find_values, read_columns
from testbed.advisor.template import UnitReader, find_templates, parts_of
from testbed.workloads.formats.record import PROMPT, Record, RecordSegment
from testbed.workloads.tokenize import StandInTokenizer

NAMES = ("Ann", "Bob", "Cyd", "Dan", "Eve", "Fay", "Gus", "Hal", "Ida", "Jon")


def raw_prompts() -> list[Record]:
    """One rule line, a line that varies, two rule lines, a question."""
    return [
        Record(
            i + 1,
            (
                RecordSegment(
                    PROMPT,
                    f"Follow the rules of the house.\nGuest {name} is here.\nNever guess.\n"
                    f"Answer in a few words, and name the page you read it on.\nWhat about {name}?",
                ),
            ),
        )
        for i, name in enumerate(NAMES)
    ]


def texts(records: list[Record]) -> list[str]:
    return [str(record.segments[0].content) for record in records]


def test_varying_positions_of_undivided_prompts_are_found_by_alignment() -> None:
    records = raw_prompts()
    reader = UnitReader()
    prompts = [reader.read(record) for record in records]
    (template,) = find_templates(prompts)
    assert template.prompts == list(range(10))
    parts = parts_of(template, prompts)
    assert [part.slot is None for part in parts] == [True, False, True, False]
    first = parts[1].units[0][0]
    assert texts(records)[0][first.start : first.end] == "Guest Ann is here.\n"


def test_two_applications_are_two_templates() -> None:
    records = raw_prompts() + [
        Record(100 + i, (RecordSegment(PROMPT, f"Sum up.\nBe kind.\nText {i}: so it goes"),))
        for i in range(9)
    ]
    reader = UnitReader()
    templates = find_templates([reader.read(record) for record in records])
    assert [len(template.prompts) for template in templates] == [10, 9]


def values_of(records: list[Record]) -> Values:
    reader, columns = read_columns(records, StandInTokenizer())
    return find_values(records, reader, columns)


def test_a_part_moves_behind_the_shared_text_and_nothing_else_changes() -> None:
    records = raw_prompts()
    values = values_of(records)
    assert [part.finding.rule for part in values.parts] == ["L1"]
    assert texts(values.moved(records, values.parts))[0] == (
        "Follow the rules of the house.\nNever guess.\n"
        "Answer in a few words, and name the page you read it on.\nGuest Ann is here.\n"
        "What about Ann?"
    )
    assert values.moved(records, []) == records


def test_prompts_of_no_template_are_left_alone() -> None:
    values = values_of(raw_prompts())
    stranger = Record(1, (RecordSegment(PROMPT, "Something else entirely."),))
    assert values.moved([stranger], values.parts) == [stranger]
