"""read_records: the requests of a file in any format that is known, streamed."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

from testbed.workloads.data_folder import find_data_file
from testbed.workloads.formats.chat import batch_record, chat_record
from testbed.workloads.formats.fields import parse_json, require_object, shown
from testbed.workloads.formats.lengths import (
    Columns,
    columns_of,
    known_headers,
    length_record,
)
from testbed.workloads.formats.mooncake import mooncake_record
from testbed.workloads.formats.prompts import (
    PROMPT_NAMES,
    TOKEN_NAMES,
    prompt_record,
    text_record,
    token_ids_record,
)
from testbed.workloads.formats.record import Record
from testbed.workloads.formats.sharegpt import CONVERSATION_NAMES, conversation_records
from testbed.workloads.formats.source import Line, array_entries, lines, parse_line
from testbed.workloads.parameters import MAX_LENGTH, require_int

OnError: TypeAlias = Literal["raise", "skip"]

_Try: TypeAlias = tuple[int, Callable[[], Iterable[Record]]]
"""A line's number, and what makes its requests or raises ValueError."""

MARKS: dict[str, tuple[str, ...]] = {
    "mooncake": ("hash_ids",),
    "openai_batch": ("body",),
    "openai_chat": ("messages",),
    "sharegpt": CONVERSATION_NAMES,
    "prompts": (*TOKEN_NAMES, *PROMPT_NAMES),
}
"""Fields by which each format of JSON objects is known, looked for in this order."""

FORMATS = (*MARKS, "token_ids", "lengths", "text")
"""The names of all formats."""


class RecordReader:
    """The requests of one file; every walk reads it anew, one batch of lines in memory.

    format: the one given, or found by the content. skipped_lines: bad lines (or entries of an
    array) that the latest walk has left out so far. All arrivals of a walk are told by one field,
    in one unit.
    """

    def __init__(
        self, path: Path, format: str | None, on_error: OnError = "raise", block_size: int = 512
    ) -> None:
        if format is not None and format not in FORMATS:
            raise ValueError(f"format={format!r}: one of {', '.join(FORMATS)} is needed")
        if on_error not in ("raise", "skip"):
            raise ValueError(f"on_error={on_error!r}: one of raise, skip is needed")
        self.block_size = block_size
        require_int(self, "block_size", 1, MAX_LENGTH)
        self.path = path
        self.skipped_lines = 0
        self.skips = on_error == "skip"
        self._found = format is None
        self._is_array, self.format = _look_into(path, format, self.skips)

    def __iter__(self) -> Iterator[Record]:
        self.skipped_lines = 0
        if self.format == "lengths":
            tries = self._length_rows()
        elif self.format == "text":
            tries = self._text_lines()
        else:
            tries = self._objects_of_array() if self._is_array else self._objects_of_lines()
        return self._good(tries)

    def _good(self, tries: Iterator[_Try]) -> Iterator[Record]:
        """The requests of what can be read; the rest is counted, or the first of it raises."""
        first: Record | None = None
        for number, convert in tries:
            try:
                records = convert()
            except ValueError as error:
                self._leave_out(number, str(error))
                continue
            for record in records:
                if record.clock is not None:
                    first = first or record
                    if record.clock != first.clock:
                        self._leave_out(
                            number,
                            f"the time is {record.clock}, but {first.clock} in line {first.line}; "
                            "one field in one unit is needed",
                        )
                        break
                yield record

    def _leave_out(self, number: int, problem: str) -> None:
        if not self.skips:
            raise ValueError(f"{self.path}, line {number}: {problem}")
        self.skipped_lines += 1

    def _objects_of_lines(self) -> Iterator[_Try]:
        convert = self._converter()
        for line in lines(self.path):
            yield line.number, lambda: convert(line.number, parse_line(line))  # noqa: B023

    def _objects_of_array(self) -> Iterator[_Try]:
        convert = self._converter()
        for number, value in array_entries(self.path):
            yield number, lambda: convert(number, value)  # noqa: B023

    def _text_lines(self) -> Iterator[_Try]:
        for line in lines(self.path):
            yield line.number, lambda: [self._text_record(line)]  # noqa: B023

    def _length_rows(self) -> Iterator[_Try]:
        rows = lines(self.path)
        header = _cells(next(rows))
        columns = columns_of(header)
        if columns is None:
            raise ValueError(f"{self.path}, line 1: {_NO_HEADER}")
        for line in rows:
            yield line.number, lambda: [_length_row(line, header, columns)]  # noqa: B023

    def _converter(self) -> Callable[[int, Any], Iterable[Record]]:
        """What makes the requests of one JSON value."""
        single: dict[str, Callable[[int, Any], Record]] = {
            "mooncake": partial(mooncake_record, block_size=self.block_size),
            "openai_batch": batch_record,
            "openai_chat": chat_record,
            "prompts": prompt_record,
        }

        def convert(number: int, value: Any) -> Iterable[Record]:
            if self.format == "token_ids":
                return [token_ids_record(number, value)]
            fields = require_object(value)
            if not any(mark in fields for mark in MARKS[self.format]):
                raise ValueError(self._not_this_format(value))
            if self.format == "sharegpt":
                return conversation_records(number, fields)
            return [single[self.format](number, fields)]

        return convert

    def _not_this_format(self, value: Any) -> str:
        other = _format_of(value)
        found = f"the line is {other}" if other else f"no {' or '.join(MARKS[self.format])}"
        return f"{found}, but the file is read as {self.format}; one format a file is needed"

    def _text_record(self, line: Line) -> Record:
        text = line.text()
        if self._found and text.lstrip().startswith("{"):
            try:
                other = _format_of(parse_json(text))
            except ValueError:
                other = None
            if other is not None:
                raise ValueError(
                    f"the line is {other}, but the file began with plain text; give format=text if "
                    "every line is a prompt as it stands"
                )
        return text_record(line.number, text)


def read_records(
    path: str | Path,
    format: str | None = None,
    *,
    on_error: OnError = "raise",
    block_size: int = 512,
) -> RecordReader:
    """The requests of a file (or of a name inside the data folder), to be walked any number of
    times: `for record in read_records(path)`.

    format: one of FORMATS; None finds it by the content of the first line. Objects may stand one a
    line (JSONL) or in one JSON array; the file may be gzipped. on_error: what a bad line does,
    `raise` or `skip`, which counts it in `skipped_lines`. block_size: tokens a hash id of a
    Mooncake trace names.

    Raises FileNotFoundError, or ValueError naming file, line, field, value and what is accepted:
    at once if the format cannot be found, else while walking. An array that is broken cannot be
    read on and raises in any case.
    """
    return RecordReader(find_data_file(path), format, on_error, block_size)


def _look_into(path: Path, format: str | None, skips: bool) -> tuple[bool, str]:
    """Whether the file is one JSON array, and its format."""
    start = _start_of(path)
    if format in ("text", "lengths"):
        return False, format
    is_array = start[:1] == b"[" and start[1:].lstrip()[:1] in (b"", b"{", b"[", b"]")
    if format is not None:
        return is_array, format
    return is_array, _format_of_array(path, skips) if is_array else _format_of_lines(path, skips)


def _start_of(path: Path) -> bytes:
    first = next(lines(path), None)
    if first is None:
        raise ValueError(f"{path} is empty; at least one request is needed")
    return first.data.lstrip()


def _format_of_array(path: Path, skips: bool) -> str:
    for _, value in array_entries(path):
        if found := _format_of(value):
            return found
        if not skips:
            break
    which = "every entry" if skips else "the array's first entry"
    raise ValueError(f"{path}: {which} is of no known format; {_KNOWN}")


def _format_of_lines(path: Path, skips: bool) -> str:
    """The format of the first line, or where bad ones are skipped, of the first that has one."""
    problem: str | None = None
    walk = lines(path)
    for line in walk:
        is_json = line.data.lstrip()[:1] in (b"{", b"[")
        try:
            text = line.text()
            found = _format_of(parse_line(line)) if is_json else None
            if is_json and found is None:
                raise ValueError(f"the object is of no known format; {_KNOWN}")
        except ValueError as error:
            hint = f"; {_OR_TEXT}" if is_json else ""
            problem = problem or f"{path}, line {line.number}: {error}{hint}"
            if not skips:
                break
        else:
            return found or _format_of_text(path, line, next(walk, None), text)
    raise ValueError(problem)


def _format_of_text(path: Path, first: Line, second: Line | None, text: str) -> str:
    """`lengths` or `text`; ValueError if the lines look like a table of something else."""
    names = _cells(first)
    if columns_of(names) is not None:
        return "lengths"
    is_names = len(names) > 1 and all(re.fullmatch(r"\w+", name) for name in names)
    values = [] if second is None else _cells(second)
    has_numbers = len(names) == len(values) > 1 and any(
        _is_number(value) and not _is_number(name)
        for name, value in zip(names, values, strict=True)
    )
    if is_names or has_numbers or ".csv" in path.suffixes:
        raise ValueError(f"{path}, line {first.number}: {text[:60]!r} is {_NO_HEADER}; {_OR_TEXT}")
    return "text"


def _cells(line: Line) -> list[str]:
    """The line as a row of CSV; empty if it is none."""
    try:
        return [cell.strip() for cell in _csv_row(line)]
    except ValueError:
        return []


def _is_number(cell: str) -> bool:
    return re.fullmatch(r"[-+]?\d+(\.\d*)?", cell, re.ASCII) is not None


_NO_HEADER = f"no known header of a CSV trace; the columns of one are needed: {known_headers()}"
_OR_TEXT = "if each line is a prompt as it stands, give the format text"
_KNOWN = "one of " + ", ".join("/".join(marks) for marks in MARKS.values()) + " is looked for"


def _format_of(value: Any) -> str | None:
    """The format of a JSON value, None if it is of no known one."""
    if isinstance(value, list):
        return "token_ids"
    if not isinstance(value, dict):
        return None
    return next((name for name, marks in MARKS.items() if any(m in value for m in marks)), None)


def _csv_row(line: Line) -> list[str]:
    try:
        return next(csv.reader([line.text()], strict=True))
    except csv.Error as error:
        raise ValueError(f"not CSV ({error})") from None


def _length_row(line: Line, header: list[str], columns: Columns) -> Record:
    row = _csv_row(line)
    if len(row) != len(header):
        raise ValueError(f"{shown(len(row))} columns; {len(header)}, as in the header, are needed")
    named = {name.strip(): value.strip() for name, value in zip(header, row, strict=True)}
    return length_record(line.number, columns, named)
