"""Pieces of prompt text: units, blocks, values that change, and what counts as the same text."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import pairwise
from types import MappingProxyType
from typing import Literal, NamedTuple

TIME = re.compile(
    r"\d{4}-\d{2}-\d{2}(?:[T ]\d{2}:\d{2}(?::\d{2})?(?:\.\d+)?(?:Z|[+-]\d{2}:?\d{2})?)?"
    r"|\b\d{1,2}[/.]\d{1,2}[/.]\d{4}\b"
    r"|\b\d{1,2}:\d{2}(?::\d{2})?(?:\s*[AaPp][Mm])?\b"
    r"|\b1\d{9}(?:\d{3})?\b"
    r"|\b(?:Mon|Tues?|Wed(?:nes)?|Thu(?:rs)?|Fri|Sat(?:ur)?|Sun)(?:day)?\b"
    r"|\b(?:\d{1,2}\s+)?(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*\.?\s+\d{1,4}\b"
)
"""Dates, clock times, weekdays, seconds or milliseconds since 1970."""
IDENTIFIER = re.compile(
    r"\b[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}\b"
    r"|\b(?:req|request|sess|session|trace|span|conv|txn|corr|run|job|msg|call|nonce)"
    r"(?:[-_ ]?id)?[-_:=# ]{1,2}[A-Za-z0-9]*\d[A-Za-z0-9]*\b"
    r"|\b(?=[0-9a-fA-F]*\d)[0-9a-fA-F]{12,64}\b"
    r"|\b[0-9A-HJKMNP-TV-Z]{26}\b"
    r"|\b\d{6,}\b",
    re.IGNORECASE,
)
"""UUIDs, ids with a telling name, hexadecimal digests, ULIDs and long numbers."""
USER_FIELD = re.compile(
    r"\b[\w.+-]+@[\w-]+\.[\w.]{2,}\b"
    r"|\b(?:user|username|user_name|customer|account|tenant|org|organi[sz]ation|company|client|"
    r"first_?name|last_?name|full_?name|name|locale|language|time_?zone|tz|plan|tier)"
    r"\s*[:=]\s*[^\s<]+"
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
    r"[ \t]*\[?\d*\]?[ \t]*[:.)]|<(?:doc|document|chunk|passage)\b[^>\n]*>)[ \t]*",
    re.MULTILINE | re.IGNORECASE,
)
_PARAGRAPH = re.compile(r"(?<=\n\n)(?=\S)")
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
    """Few-shot examples and retrieved chunks where markers set them off, else paragraphs.

    Together they are the text. Where the last of several marked blocks ends no marker tells: it
    ends with its first paragraph, or with the body that `bodies` gives for that paragraph.
    """
    marks = sorted((mark.start(), mark.end(), kind) for kind, mark in _marks(text))
    found = _paragraphs(text[: marks[0][0]] if marks else text)
    end_mark: tuple[int, int, BlockKind] = (len(text), len(text), "paragraph")
    for (start, opened, kind), (end, _, next_kind) in pairwise([*marks, end_mark]):
        content = text[opened:end]
        if next_kind != kind:
            body = bodies.get(first_paragraph(content), "")
            if not (body and content.startswith(body)):
                body = _PARAGRAPH.split(content)[0]
            rest = content[len(body) :]
            content = body + rest[: len(rest) - len(rest.lstrip())]
        found.append(_block(kind, text[start:opened], content))
        found += _paragraphs(text[opened + len(content) : end])
    return found


def _marks(text: str) -> Iterator[tuple[BlockKind, re.Match[str]]]:
    examples = list(_EXEMPLAR.finditer(text))
    if len(examples) >= MIN_EXEMPLARS:
        yield from (("exemplar", mark) for mark in examples)
    chunks = list(_CHUNK.finditer(text))
    if len(chunks) >= MIN_CHUNKS:
        yield from (("chunk", mark) for mark in chunks)


def first_paragraph(text: str) -> str:
    """The text up to its first blank line."""
    return _PARAGRAPH.split(text)[0].rstrip()


def _paragraphs(text: str) -> list[Block]:
    return [_block("paragraph", "", piece) for piece in _PARAGRAPH.split(text) if piece]


def _block(kind: BlockKind, opening: str, text: str) -> Block:
    body = text.rstrip()
    return Block(kind, opening, body, text[len(body) :])
