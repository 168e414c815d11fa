"""Bytes of a file, plain or gzipped, as lines or as the entries of a JSON array, streamed."""

from __future__ import annotations

import codecs
import gzip
import json
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedIOBase
from pathlib import Path
from typing import Any, NamedTuple

from testbed.workloads.formats.fields import parse_json, refuse_constant, unique_fields

MAX_ENTRY_BYTES = 1 << 28
"""Of one line or one entry of an array: a prompt of ten million tokens has a fifth of it."""

_CHUNK = 1 << 20
_BLANKS = re.compile(r"[ \t\n\r]*")
_GZIP = b"\x1f\x8b"
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


class Line(NamedTuple):
    """One line without its end. `ended` is False for a last line that no newline follows."""

    number: int
    data: bytes
    ended: bool

    def text(self) -> str:
        """The line as text; ValueError if it is not UTF-8, or holds a NUL."""
        try:
            decoded = self.data.decode()
        except UnicodeDecodeError as error:
            byte = self.data[error.start]
            raise ValueError(
                f"not UTF-8 (byte 0x{byte:02x} at position {error.start}); UTF-8 is needed"
            ) from None
        if "\0" in decoded:
            raise ValueError("a NUL stands in the line; text in UTF-8 is needed")
        return decoded


def parse_line(line: Line) -> Any:
    """The JSON value of a line; ValueError if it is none."""
    try:
        return parse_json(line.text())
    except ValueError as error:
        hint = "" if line.ended else "; the file ends within this line, is it cut off?"
        raise ValueError(f"{error}{hint}") from None


def lines(path: Path) -> Iterator[Line]:
    """The lines that are not blank; ends may be LF or CRLF, a byte order mark is passed over.

    ValueError if the file is UTF-16, its compression is broken or a line is beyond all bounds.
    """
    with _opened(path) as stream:
        number = 0
        while data := stream.readline(MAX_ENTRY_BYTES + 1):
            number += 1
            if len(data) > MAX_ENTRY_BYTES:
                raise ValueError(
                    f"{path}, line {number}: longer than {MAX_ENTRY_BYTES} bytes; "
                    "one request a line is needed"
                )
            if number == 1:
                data = data.removeprefix(codecs.BOM_UTF8)
            if data.strip():
                yield Line(number, data.rstrip(b"\r\n"), data.endswith(b"\n"))


def array_entries(path: Path) -> Iterator[tuple[int, Any]]:
    """(line it begins at, value) of each entry of a JSON array, one in memory at a time.

    ValueError where the array is broken: nothing behind that point can be read.
    """
    with _opened(path) as stream:
        decoder = json.JSONDecoder(parse_constant=refuse_constant, object_pairs_hook=unique_fields)
        source = _Characters(path, stream)
        source.expect("[")
        if source.next_is("]"):
            source.expect("]")
        else:
            while True:
                line = source.at_line()
                yield line, source.value(decoder)
                if not source.next_is(","):
                    break
                source.expect(",")
            source.expect("]")
        if not source.at_end():
            raise ValueError(f"{path}, line {source.at_line()}: text follows the array's end")


class _Characters:
    """The text of a stream, read as it is needed."""

    def __init__(self, path: Path, stream: BufferedIOBase) -> None:
        self._path = path
        self._stream = stream
        self._decode = codecs.getincrementaldecoder("utf-8-sig")()
        self._text = ""
        self._place = 0
        self._line = 1

    def expect(self, character: str) -> None:
        """Pass over the character; ValueError if another one comes next."""
        if not self.next_is(character):
            found = repr(self._text[self._place]) if not self.at_end() else "the end of the file"
            raise ValueError(f"{self._path}, line {self._line}: {found} where {character!r} is due")
        self._place += 1

    def next_is(self, character: str) -> bool:
        """Whether it comes next, after any blanks."""
        return not self.at_end() and self._text[self._place] == character

    def at_line(self) -> int:
        """The line of what comes next, after any blanks."""
        self.at_end()
        return self._line

    def at_end(self) -> bool:
        """Whether nothing but blanks is left."""
        while True:
            blanks = _BLANKS.match(self._text, self._place)
            self._advance(0 if blanks is None else blanks.end() - self._place)
            if self._place < len(self._text):
                return False
            if not self._read(_CHUNK):
                return True

    def value(self, decoder: json.JSONDecoder) -> Any:
        """The JSON value that comes next."""
        while True:
            try:
                value, end = decoder.raw_decode(self._text, self._place)
            except RecursionError:
                raise ValueError(f"{self._path}, line {self._line}: nested too deep") from None
            except ValueError as error:
                known = len(self._text) - self._place
                if self._may_be_cut(error) and known < MAX_ENTRY_BYTES and self._read(known):
                    continue
                is_cut = isinstance(error, json.JSONDecodeError)
                hint = "is the file cut off? " if is_cut else ""
                raise ValueError(
                    f"{self._path}, line {self._line}: not JSON ({error}); "
                    f"{hint}nothing behind can be read"
                ) from None
            self._advance(end - self._place)
            return value

    def _may_be_cut(self, error: ValueError) -> bool:
        """Whether more text may mend it: it fails at the end, or in a string that has none."""
        if not isinstance(error, json.JSONDecodeError):
            return False
        return error.msg.startswith("Unterminated") or error.pos > len(self._text) - 16

    def _advance(self, count: int) -> None:
        self._line += self._text.count("\n", self._place, self._place + count)
        self._place += count

    def _read(self, least: int) -> bool:
        data = self._stream.read(max(least, _CHUNK))
        try:
            text = self._decode.decode(data, final=not data)
        except UnicodeDecodeError as error:
            raise ValueError(f"{self._path}: not UTF-8 ({error.reason}); UTF-8 is needed") from None
        self._text = self._text[self._place :] + text
        self._place = 0
        return bool(data)


@contextmanager
def _opened(path: Path) -> Iterator[BufferedIOBase]:
    with path.open("rb") as plain:
        start = plain.read(2)
        plain.seek(0)
        if start in _UTF16:
            raise ValueError(f"{path}: the file is UTF-16; UTF-8 is needed")
        if start != _GZIP:
            yield plain
            return
        try:
            with gzip.open(plain) as unpacked:
                yield unpacked
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(f"{path}: the gzip file is broken ({error})") from None
