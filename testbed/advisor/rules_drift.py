"""Lint rule L7: the same text, written with other white space or other Unicode characters."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise

from testbed.advisor.findings import (
    MIN_REQUESTS,
    Detected,
    Finding,
    Place,
    place,
    texts_of,
    with_texts,
)
from testbed.advisor.text import normal, units
from testbed.workloads.formats.record import Record

MIN_CHARACTERS = 12
"""Shorter pieces repeat by chance."""

Key = tuple[str, str, str]
"""Role, a unit's normal text, and that of the unit behind it."""


def find_drift(records: Sequence[Record]) -> list[Detected]:
    """L7, at most once: units that are alike, between like neighbours, but not the same."""
    variants = _variants(records)
    usual = {
        key: counts.most_common(1)[0][0] for key, counts in variants.items() if len(counts) > 1
    }
    odd = sum(variants[key].total() - variants[key][raw] for key, raw in usual.items())
    if odd < MIN_REQUESTS:
        return []

    def mended(role: str, text: str) -> str:
        return "".join(usual.get(key, raw) for key, raw in _keyed(role, text))

    example, kind = _example(records, usual)
    affected = sum(
        any(
            usual.get(key, raw) != raw
            for _, s, text in texts_of(r)
            for key, raw in _keyed(s.role, text)
        )
        for r in records
    )
    finding = Finding(
        "L7",
        example[0].segment,
        f"{len(usual):,} pieces of text are sent in several spellings that differ in {kind} alone",
        "normalise the template before it is sent: NFC, LF, no trailing blanks, fixed blank lines",
        affected,
        example,
    )
    return [Detected(finding, lambda log: [with_texts(record, mended) for record in log])]


def _variants(records: Sequence[Record]) -> dict[Key, Counter[str]]:
    texts: Counter[tuple[str, str]] = Counter()
    for record in records:
        for _, segment, text in texts_of(record):
            if segment.role != "assistant":
                texts[segment.role, text] += 1
    variants: dict[Key, Counter[str]] = {}
    for (role, text), count in texts.items():
        for key, raw in _keyed(role, text):
            if len(key[1]) + len(key[2]) >= MIN_CHARACTERS:
                variants.setdefault(key, Counter())[raw] += count
    return variants


def _keyed(role: str, text: str) -> Iterator[tuple[Key, str]]:
    pieces = list(units(text))
    for raw, following in pairwise([*pieces, ""]):
        yield (role, normal(raw), normal(following)), raw


def _example(records: Sequence[Record], usual: dict[Key, str]) -> tuple[tuple[Place, Place], str]:
    """An odd spelling beside a usual one, and in what they differ."""
    odd: tuple[Key, str, Place] | None = None
    seen: dict[Key, Place] = {}
    for record in records:
        for _, segment, text in texts_of(record):
            character = 0
            for key, raw in _keyed(segment.role, text):
                if key in usual:
                    here = place(record, segment.role, character, repr(raw))
                    if raw == usual[key]:
                        seen.setdefault(key, here)
                    elif odd is None:
                        odd = key, raw, here
                    if odd is not None and odd[0] in seen:
                        return (odd[2], seen[odd[0]]), _difference(odd[1], usual[odd[0]])
                character += len(raw)
    raise AssertionError("a key with two spellings has both among the records")


def _difference(here: str, there: str) -> str:
    if here.split() == there.split():
        if here.replace("\r\n", "\n") == there.replace("\r\n", "\n"):
            return "line ends (CRLF and LF)"
        return "white space"
    if unicodedata.normalize("NFC", here) == unicodedata.normalize("NFC", there):
        return "Unicode form (NFC and NFD)"
    return "look-alike characters"
