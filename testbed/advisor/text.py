"""Pieces of prompt text: units, blocks, values that change, and what counts as the same text."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import pairwise
from types import MappingProxyType
from typing import Literal, NamedTuple

_MONTH = (
    r"(?:Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?"
    r"|Sept?(?:ember)?|Oct(?:ober)?|Nov(?:ember)?|Dec(?:ember)?)\.?"
)
TIME = re.compile(
    r"\b\d{4}[-/]\d{2}[-/]\d{2}(?:[T ]\d{2}:\d{2}(?::\d{2})?(?:[.,]\d+)?(?:Z|[+-]\d{2}:?\d{2})?)?"
    r"|\b\d{8}T\d{4,6}(?:[.,]\d+)?(?:Z|[+-]\d{2}:?\d{2})?"
    r"|\b\d{1,2}[-/.]\d{1,2}[-/.]\d{4}\b"
    r"|\b\d{1,2}:\d{2}(?::\d{2})?(?:[.,]\d+)?(?:\s*[AaPp][Mm])?\b(?:\s+[A-Z]{2,4}\b)?"
    r"(?:\s+(?:19|20)\d{2}\b)?"
    r"|\b1\d{9}(?:\d{3})?(?:\.\d+)?\b"
    r"|\b(?:Mon|Tues?|Wed(?:nes)?|Thu(?:rs)?|Fri|Sat(?:ur)?|Sun)(?:day)?\b"
    rf"|\b(?:\d{{1,2}}(?:st|nd|rd|th)?\s+)?{_MONTH}\s+\d{{1,4}}(?:st|nd|rd|th)?\b"
    r"(?:,?\s+(?:19|20)\d{2}\b)?"
)
"""Dates, clock times, weekdays, seconds or milliseconds since 1970."""
_VALUE = r"""["']?(?=[\w-]*\d)\w+(?:-\w+)*"""
IDENTIFIER = re.compile(
    r"\b(?:req|request|rid|sess|session|trace|span|conv|conversation|thread|txn|transaction|corr"
    r"|correlation|run|job|msg|message|call|nonce)(?:[-_ ]?id)?"
    rf"""["']?(?:\s*[:=#]\s*|[-_ ]{{1,2}}){_VALUE}\b"""
    r"|\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"
    r"|\b(?=[0-9a-f]*\d)[0-9a-f]{12,64}\b"
    r"|\b[0-9A-HJKMNP-TV-Z]{26}\b"
    r"|\b\d{6,}\b",
    re.IGNORECASE,
)
"""UUIDs, ids with a telling name, hexadecimal digests, ULIDs and long numbers."""
USER_FIELD = re.compile(
    r"\b[\w.+-]+@[\w-]+\.[\w.]{2,}\b"
    r"|\b(?i:(?:user|customer|account|tenant|org|organi[sz]ation|company|client)"
    r"(?:[-_ ]?(?:id|uuid|name))?|(?:first|last|full)?[-_ ]?name|locale|language|time_?zone|tz"
    r"|plan|tier)"
    r"""["']?\s*[:=]\s*(?:"[^"\n]*"|'[^'\n]*'|[^\s<,;"'}]+)"""
    r"|\b[a-z]{2}[-_][A-Z]{2}\b"
    r"|(?:\+\d{1,3}[ -]?)?\(?\b\d{3}\)?[ -]\d{3}[ -]\d{4}\b"
)
"""E-mail addresses, labelled fields of a user or tenant, locales, telephone numbers."""

_UNIT = re.compile(r"[^\n]*?(?:[.!?][ \t]+(?=\S)|\n\s*|\Z)")
_EXEMPLAR = re.compile(
    r"^[ \t]*(?:#+ *)?(?:Example|Exemplar|Q|Question|Input|Sentence|Review)"
    r"[ \t]*\d*[ \t]*[:.)][ \t]*",
    re.MULTILINE | re.IGNORECASE,
)
_CHUNK = re.compile(
    r"^[ \t]*(?:\[\d+\]|(?:#+ *)?(?:Document|Doc|Passage|Chunk|Source|Context|Snippet)"
    r"[ \t]*\[?\d*\]?[ \t]*[:.)]|<(?P<tag>doc|document|chunk|passage|source|context)\b[^>\n]*>)"
    r"[ \t]*",
    re.MULTILINE | re.IGNORECASE,
)
_NUMBER = re.compile(r"\d+")
_PARAGRAPH = re.compile(r"(?<=\n\n)(?=\S)")
# A line, and behind it blank lines and a line of three to five dashes, stars or the like.
_RULE = r"(?:([-*_=])\1{2,4}[ \t]*\r?\n\s*)"
_LINE = re.compile(rf"[^\n]*(?:\n\s*{_RULE}?|\Z)")
_ENDING = re.compile(rf"\s*(?:\n{_RULE})?\Z")
_SAME_CHARACTERS = str.maketrans(
    {
        "\u00a0": " ",
        "\u202f": " ",
        "\u2018": "'",
        "\u2019": "'",
        "\u201c": '"',
        "\u201d": '"',
        "\u2013": "-",
        "\u2014": "-",
        "\u200b": None,
        "\ufeff": None,
    }
)
MIN_EXEMPLARS = 3
MIN_CHUNKS = 2

BlockKind = Literal["exemplar", "chunk", "paragraph"]
CHUNK: Literal["chunk"] = "chunk"


class Block(NamedTuple):
    """A movable piece of a text: `opening` (a marker and its number), `body`, `ending` (space)."""

    kind: BlockKind
    opening: str
    body: str
    ending: str


@lru_cache(maxsize=1 << 16)
def normal(text: str) -> str:
    """The text with white space, Unicode forms, quotes and dashes made alike."""
    return " ".join(unicodedata.normalize("NFC", text).translate(_SAME_CHARACTERS).split())


def units(text: str) -> Iterator[str]:
    """Lines, and sentences of a line, each with the white space behind it; together the text."""
    for match in _UNIT.finditer(text):
        if match[0]:
            yield match[0]


def blocks(text: str, bodies: Mapping[str, str] = MappingProxyType({})) -> list[Block]:
    """Few-shot examples and retrieved chunks where markers or tags set them off, else lines.

    Together they are the text. Where the last of several marked blocks ends no marker tells: it
    ends with its closing tag, or with the body that `bodies` gives for its first paragraph, or
    with that paragraph. A chunk's marker is its `opening` if it counts the chunks of the text;
    else, as it goes with the chunk, it is part of the body.
    """
    marks = sorted((mark.start(), mark.end(), kind) for kind, mark in _marks(text))
    found = _lines(text[: marks[0][0]] if marks else text)
    numbers = [
        _NUMBER.findall(text[start:opened]) for start, opened, kind in marks if kind == CHUNK
    ]
    counts = any(numbers == [[str(i + first)] for i in range(len(numbers))] for first in (0, 1))
    is_plain = not any(numbers)
    end_mark: tuple[int, int, BlockKind] = (len(text), len(text), "paragraph")
    for (start, opened, kind), (end, _, next_kind) in pairwise([*marks, end_mark]):
        content = text[opened:end]
        if (closed := _closed(text[start:opened], content)) is not None:
            content = content[:closed]
        elif next_kind != kind:
            body = bodies.get(first_paragraph(content), "")
            if not (body and content.startswith(body)):
                body = _PARAGRAPH.split(content)[0]
            rest = content[len(body) :]
            content = body + rest[: len(rest) - len(rest.lstrip())]
        end_of_block = opened + len(content)
        if kind == CHUNK and not (counts or is_plain):
            opened = start
        found.append(_block(kind, text[start:opened], text[opened:end_of_block]))
        found += _lines(text[end_of_block:end])
    return found


def _closed(opening: str, content: str) -> int | None:
    """Where in the content the tag that opens it has been closed, with the space behind it."""
    tag = _CHUNK.match(opening)
    if tag is None or tag["tag"] is None:
        return None
    closing = re.search(rf"</{tag['tag']}>\s*", content)
    return None if closing is None else closing.end()


def _marks(text: str) -> Iterator[tuple[BlockKind, re.Match[str]]]:
    examples = list(_EXEMPLAR.finditer(text))
    if len(examples) >= MIN_EXEMPLARS:
        yield from (("exemplar", mark) for mark in examples)
    chunks = list(_CHUNK.finditer(text))
    if len(chunks) >= MIN_CHUNKS:
        yield from ((CHUNK, mark) for mark in chunks)


def first_paragraph(text: str) -> str:
    """The text up to its first blank line."""
    return _PARAGRAPH.split(text)[0].rstrip()


def _lines(text: str) -> list[Block]:
    return [_block("paragraph", "", match[0]) for match in _LINE.finditer(text) if match[0]]


def _block(kind: BlockKind, opening: str, text: str) -> Block:
    ending = _ENDING.search(text)
    assert ending is not None
    return Block(kind, opening, text[: ending.start()], ending[0])
