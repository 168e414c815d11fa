"""What another order of a template's parts would win, counted token by token as the lint does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from testbed.advisor.findings import segment_name
from testbed.advisor.lint import Lint
from testbed.advisor.relocation import text_of
from testbed.advisor.requests import requests_of
from testbed.advisor.rules_values import Columns, read_columns
from testbed.advisor.sessions import PREAMBLE
from testbed.advisor.statements import Statement, item, say
from testbed.metrics.bounds import sharing_bound
from testbed.metrics.prompt_paths import prompt_paths
from testbed.metrics.template_order import SegmentColumn, best_order
from testbed.workloads.formats.record import PROMPT, Record, RecordSegment
from testbed.workloads.tokenize import Tokenizer

MAX_PARTS = 16
"""A template of more parts is not put into words."""
MAX_NAME = 28
MIN_BETTER = 0.005
"""Of the bound that an order must win to be worth telling."""
MAX_COUNTED = 1000
"""Prompts of the template on which orders are compared."""


def order_statements(
    found: Lint, records: Sequence[Record], tokenizer: Tokenizer, page_size: int
) -> list[Statement]:
    """What a better order of the mended prompts' parts wins; nothing where none does.

    Of the most used template. Inside the prompt's segments, and across them. In conversations the
    turns are one part, which stays last.
    """
    mended = found.mend(records)
    _, all_columns = read_columns(mended, tokenizer)
    if not all_columns:
        return []
    columns = all_columns[0]
    parts = _parts(columns, mended)
    movable = [i for i, part in enumerate(parts) if part.column is not None]
    if not 1 < len(movable) <= MAX_PARTS:
        return []
    own = [column for part in parts if (column := part.column) is not None]
    roles = [parts[i].role for i in movable]
    boundaries = [i + 1 for i, (one, other) in enumerate(pairwise(roles)) if one != other]
    rest = [i for i in range(len(parts)) if i not in movable]

    def bound(order: Sequence[int]) -> float:
        prompts = [
            Record(i + 1, (RecordSegment(PROMPT, "".join(parts[p].texts[i] for p in order)),))
            for i in range(min(len(columns.template.prompts), MAX_COUNTED))
        ]
        return sharing_bound(prompt_paths(requests_of(prompts, tokenizer), page_size)).rate

    as_it_is = [*movable, *rest]
    before = now = bound(as_it_is)
    said = []
    for what, order in (
        ("Best order inside the segments", best_order(own, boundaries)),
        (
            "Across segments, which changes what the model reads where: check its answers",
            best_order(own),
        ),
    ):
        places = [*(movable[i] for i in order.order), *rest]
        after = bound(places)
        if after - before < MIN_BETTER:
            continue
        said.append(
            item(
                "{what}: {order}. Of these prompts {before:.1%} -> {after:.1%} can be found in a "
                "cache without limit ({method}).",
                what=what,
                order=" | ".join(parts[i].name for i in places),
                before=before,
                after=after,
                method="exact for whole parts" if order.method != "greedy" else "greedy",
            )
        )
        before = after
    if not said:
        return []
    intro = say(
        "The most used template ({prompts:,} of the requests looked at), once mended, has {parts} "
        "parts: {order}. {now:.1%} of its tokens can be found in a cache without limit.",
        prompts=len(columns.template.prompts),
        parts=len(parts),
        order=" | ".join(parts[i].name for i in as_it_is),
        now=now,
    )
    return [intro, *said]


@dataclass(frozen=True)
class _Part:
    """texts: what each prompt of the template has there. column: None for a part that stays."""

    role: str
    name: str
    texts: list[str]
    column: SegmentColumn | None


def _parts(columns: Columns, records: Sequence[Record]) -> list[_Part]:
    """The template's parts in order; the turns of conversations as one."""
    stays = [columns.is_conversation and part.role not in PREAMBLE for part in columns.parts]
    found = [
        _Part(part.role, _name(columns, i), columns.texts[i], columns.columns[i])
        for i, part in enumerate(columns.parts)
        if not stays[i]
    ]
    if any(stays):
        turns = [part for part, last in zip(columns.parts, stays, strict=True) if last]
        texts = []
        for i, prompt in enumerate(columns.template.prompts):
            units = sorted(
                (unit for part in turns for unit in part.units[i]),
                key=lambda unit: (unit.segment, unit.start),
            )
            texts.append(text_of(records[prompt], units))
        found.append(_Part("conversation", "the conversation, turn by turn", texts, None))
    return found


def _name(columns: Columns, index: int) -> str:
    part = columns.parts[index]
    tokens = columns.columns[index].tokens.mean()
    role = segment_name(part.role)
    if part.slot is None:
        return f"{role}: shared text ({tokens:,.0f} tokens)"
    text = next((" ".join(text.split()) for text in columns.texts[index] if text.strip()), "")
    shown = text if len(text) <= MAX_NAME else text[: MAX_NAME - 3] + "..."
    return f"{role}: '{shown}' ({tokens:,.0f} tokens, {columns.num_values(index):,} values)"
