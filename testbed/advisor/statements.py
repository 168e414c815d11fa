"""Sentences of a page that carry the numbers they were made of."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Statement:
    """A sentence: `text` with the numbers put into its fields, as str.format does.

    is_item: it is one of a list.
    """

    template: str
    numbers: dict[str, Any]
    is_item: bool = False

    @property
    def text(self) -> str:
        """The sentence as a page shows it."""
        return self.template.format(**self.numbers)


@dataclass(frozen=True)
class Section:
    """A heading and what is said below it."""

    title: str
    statements: list[Statement]


def say(template: str, /, **numbers: Any) -> Statement:
    """A sentence."""
    return Statement(template, numbers)


def item(template: str, /, **numbers: Any) -> Statement:
    """An entry of a list."""
    return Statement(template, numbers, True)


def as_json(sections: list[Section]) -> list[dict[str, Any]]:
    """The sections with text and numbers, NaN as null: JSON has none."""
    return [
        {
            "title": section.title,
            "statements": [
                {"text": one.text, "numbers": {k: _plain(v) for k, v in one.numbers.items()}}
                for one in section.statements
            ],
        }
        for section in sections
    ]


def _plain(value: Any) -> Any:
    value = value.item() if hasattr(value, "item") else value
    return None if isinstance(value, float) and not math.isfinite(value) else value
