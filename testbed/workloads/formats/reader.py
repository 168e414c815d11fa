"""read_records: the requests of a file in any format that is known, streamed."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

from testbed.workloads.data_folder import find_data_file
from testbed.workloads.formats.chat import batch_record, chat_record
from testbed.workloads.formats.fields import parse_json, require_object, shown
from testbed.workloads.formats.lengths import Columns, columns_of, length_record
from testbed.workloads.formats.mooncake import mooncake_record
from testbed.workloads.formats.prompts import (
    PROMPT_NAMES,
    TOKEN_NAMES,
    prompt_record,
    text_record,
    token_ids_record,
)
from testbed.workloads.formats.record import Record
from testbed.workloads.formats.sharegpt import conversation_records
from testbed.workloads.formats.source import Line, array_entries, lines, parse_line

OnError: TypeAlias = Literal["raise", "skip"]

MARKS: dict[str, tuple[str, ...]] = {
    "mooncake": ("hash_ids",),
    "openai_batch": ("body",),
    "openai_chat": ("messages",),
    "sharegpt": ("conversations",),
    "prompts": (*TOKEN_NAMES, *PROMPT_NAMES),
}
"""Fields by which each format of JSON objects is known, looked for in this order."""

FORMATS = (*MARKS, "token_ids", "lengths", "text")
"""The names of all formats."""


class RecordReader:
    """The requests of one file; every walk reads it anew, one batch of lines in memory.

    format: the one given, or found by the content. skipped_lines: bad lines (or entries of an
    array) that the latest walk has left out so far.
    """

    def __init__(
        self, path: Path, format: str | None, on_error: OnError = "raise", block_size: int = 512
    ) -> None:
        if format is not None and format not in FORMATS:
            raise ValueError(f"format={format!r}: one of {', '.join(FORMATS)} is needed")
        if on_error not in ("raise", "skip"):
            raise ValueError(f"on_error={on_error!r}: one of raise, skip is needed")
        self.path = path
        self.skipped_lines = 0
        self.skips = on_error == "skip"
        self._block_size = block_size
        self._found = format is None
        self._is_array, self.format = _look_into(path, format)

    def __iter__(self) -> Iterator[Record]:
        self.skipped_lines = 0
        if self.format == "lengths":
            return self._length_rows()
        if self.format == "text":
            return self._text_lines()
        return self._objects_of_array() if self._is_array else self._objects_of_lines()

    def _objects_of_lines(self) -> Iterator[Record]:
        convert = self._converter()
        for line in lines(self.path):
            yield from self._tried(line.number, lambda: convert(line.number, parse_line(line)))  # noqa: B023

    def _objects_of_array(self) -> Iterator[Record]:
        convert = self._converter()
        for number, value in array_entries(self.path):
            yield from self._tried(number, lambda: convert(number, value))  # noqa: B023

    def _text_lines(self) -> Iterator[Record]:
        for line in lines(self.path):
            yield from self._tried(line.number, lambda: [self._text_record(line)])  # noqa: B023

    def _length_rows(self) -> Iterator[Record]:
        rows = lines(self.path)
        header = _csv_row(next(rows))
        columns = columns_of(header)
        if columns is None:
            raise ValueError(f"{self.path}, line 1: no known header of a CSV trace")
        for line in rows:
            yield from self._tried(line.number, lambda: [_length_row(line, header, columns)])  # noqa: B023

    def _tried(self, number: int, convert: Callable[[], list[Record]]) -> list[Record]:
        try:
            return convert()
        except ValueError as error:
            if not self.skips:
                raise ValueError(f"{self.path}, line {number}: {error}") from None
            self.skipped_lines += 1
            return []

    def _converter(self) -> Callable[[int, Any], list[Record]]:
        """What makes the requests of one JSON value."""
        single: dict[str, Callable[[int, Any], Record]] = {
            "mooncake": partial(mooncake_record, block_size=self._block_size),
            "openai_batch": batch_record,
            "openai_chat": chat_record,
            "prompts": prompt_record,
        }

        def convert(number: int, value: Any) -> list[Record]:
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


def _look_into(path: Path, format: str | None) -> tuple[bool, str]:
    """Whether the file is one JSON array, and its format."""
    first = next(lines(path), None)
    if first is None:
        raise ValueError(f"{path} is empty; at least one request is needed")
    start = first.data.lstrip()
    if format in ("text", "lengths"):
        return False, format
    is_array = start[:1] == b"[" and start[1:].lstrip()[:1] in (b"", b"{", b"[", b"]")
    if format is not None:
        return is_array, format
    if is_array:
        found = _format_of(next(array_entries(path), (1, None))[1])
        if found is None:
            raise ValueError(f"{path}: the array's first entry is of no known format; {_KNOWN}")
        return True, found
    try:
        if start[:1] in (b"{", b"["):
            found = _format_of(parse_line(first))
            if found is None:
                raise ValueError(f"the object is of no known format; {_KNOWN}")
            return False, found
        found = "text" if columns_of(_csv_row(first)) is None else "lengths"
    except ValueError as error:
        raise ValueError(f"{path}, line {first.number}: {error}") from None
    return False, found


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
