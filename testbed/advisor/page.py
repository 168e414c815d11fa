"""The advice as a page: terminal text or Markdown."""

from __future__ import annotations

import re
from collections.abc import Sequence
from textwrap import wrap

from testbed.advisor.statements import Section

WIDTH = 100
_SPECIAL = re.compile(r"([\\`*_<>|\[\]&~])")


def text_page(title: str, sections: Sequence[Section]) -> str:
    """Headings, paragraphs and lists, at most WIDTH columns wide."""
    title = _printable(title)
    lines = [title, "=" * min(len(title), WIDTH)]
    for section in sections:
        lines += ["", section.title]
        for statement in section.statements:
            first, other = ("  - ", "    ") if statement.is_item else ("  ", "  ")
            lines += wrap(
                _printable(statement.text),
                WIDTH,
                initial_indent=first,
                subsequent_indent=other,
                break_on_hyphens=False,
            )
    return "\n".join(lines) + "\n"


def markdown_page(title: str, sections: Sequence[Section]) -> str:
    """The same in Markdown; prompt text and names in it show as they stand."""
    lines = [f"# {_escaped(title)}"]
    for section in sections:
        lines += ["", f"## {section.title}", ""]
        for i, statement in enumerate(section.statements):
            if i and not statement.is_item:
                lines.append("")
            lines.append(("- " if statement.is_item else "") + _escaped(statement.text))
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", _printable(text))


def _printable(text: str) -> str:
    """The text with line ends as blanks, and escapes for characters that a terminal may obey."""
    text = " ".join(text.splitlines()).replace("\t", " ")
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text
    )
