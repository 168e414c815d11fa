"""HTML from plain values."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

MISSING = "\N{EN DASH}"
"""Stands for a number that was not measured."""


class Markup(str):
    """Text that is HTML already; any other string is escaped where it enters a page."""

    __slots__ = ()


def markup(value: Any) -> Markup:
    """HTML that shows the value."""
    return value if isinstance(value, Markup) else Markup(escape(str(value)))


def element(tag: str, *content: Any, **attributes: Any) -> Markup:
    """`<tag attributes>content</tag>`; attributes that are None are left out.

    A trailing underscore of a name is dropped (`class_`), inner ones are hyphens.
    """
    named = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escape(str(value))}"'
        for name, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{tag}{named}>{joined(content)}</{tag}>")


def joined(parts: Iterable[Any], between: str = "") -> Markup:
    """The parts, one after the other."""
    return Markup(between.join(map(markup, parts)))


def bullets(items: Iterable[Any]) -> Markup:
    """An unordered list."""
    return element("ul", *(element("li", item) for item in items))


def table(
    caption: str, headings: Sequence[Any], rows: Iterable[Sequence[Any]], *, texts: int = 1
) -> Markup:
    """A table in a region of its own that scrolls sideways where it is too wide.

    The first column heads the rows. texts: how many columns, from the left, hold text and not
    numbers. A row of one cell heads the rows below it.
    """
    head = element("tr", *(_heading(cell, place < texts) for place, cell in enumerate(headings)))
    body = joined(_row(row, len(headings), texts) for row in rows)
    content = joined(
        (element("caption", caption), element("thead", head), element("tbody", body)), "\n"
    )
    attributes = {"role": "region", "tabindex": 0, "aria_label": caption}
    return element("div", element("table", content), class_="scroll", **attributes)


def packed(value: Mapping[str, Any], name: str) -> Markup:
    """A script element with the value as compressed JSON, for `unpack` of canvas.js."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    # Without a time stamp, equal values give equal bytes.
    data = base64.b64encode(gzip.compress(text.encode(), 6, mtime=0)).decode()
    return Markup(f'<script type="application/gzip" id="{escape(name)}">{data}</script>')


def _heading(cell: Any, is_text: bool) -> Markup:
    return element("th", cell, scope="col", class_="text" if is_text else None)


def _row(row: Sequence[Any], width: int, texts: int) -> Markup:
    if len(row) == 1:
        return element("tr", element("th", row[0], scope="rowgroup", colspan=width), class_="group")
    cells = [element("th", row[0], scope="row", class_="text")]
    cells += [
        element("td", cell, class_="text" if place < texts else None)
        for place, cell in enumerate(row[1:], 1)
    ]
    return element("tr", *cells)
