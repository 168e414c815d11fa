"""What the page says on the order of a template's parts, now and at best."""

from __future__ import annotations

from itertools import pairwise

from testbed.advisor.findings import segment_name
from testbed.advisor.rules_values import Columns
from testbed.advisor.statements import Statement, item, say
from testbed.metrics.template_order import BestOrder, best_order, order_bound

MAX_PARTS = 16
"""A template of more parts is not put into words."""
MAX_NAME = 28
MIN_BETTER = 0.005
"""Of the bound that an order must win to be worth telling."""


def order_statements(columns: Columns) -> list[Statement]:
    """The parts in order, the best order inside the prompt's segments, and across them."""
    names = [_name(columns, i) for i in range(len(columns.parts))]
    now = order_bound(columns.columns)
    said = [
        say(
            "The most used template ({prompts:,} of the requests looked at) has {parts} parts: "
            "{order}.",
            prompts=len(columns.template.prompts),
            parts=len(names),
            order=" | ".join(names),
        )
    ]
    if len(names) > MAX_PARTS:
        return [
            say(
                "The most used template ({prompts:,} of the requests looked at) has {parts} parts, "
                "too many for a best order; the findings above say what to move.",
                prompts=len(columns.template.prompts),
                parts=len(names),
            )
        ]
    roles = [part.role for part in columns.parts]
    boundaries = [i + 1 for i, (one, other) in enumerate(pairwise(roles)) if one != other]
    inside = best_order(columns.columns, boundaries)
    across = best_order(columns.columns)
    if inside.bound.rate - now.rate < MIN_BETTER and across.bound.rate - now.rate < MIN_BETTER:
        said.append(
            say(
                "No other order of these parts shares more: {bound:.1%} of their tokens, whole "
                "parts counted.",
                bound=now.rate,
            )
        )
        return said
    if inside.bound.rate - now.rate >= MIN_BETTER:
        said.append(_better("Best order inside the segments", inside, names, now.rate))
    if across.bound.rate - inside.bound.rate >= MIN_BETTER:
        said.append(
            _better(
                "Across segments, which changes what the model reads where: check its answers",
                across,
                names,
                inside.bound.rate,
            )
        )
    return said


def _better(what: str, order: BestOrder, names: list[str], before: float) -> Statement:
    return item(
        "{what}: {order}. Bound {before:.1%} -> {after:.1%} ({method}).",
        what=what,
        order=" | ".join(names[i] for i in order.order),
        before=before,
        after=order.bound.rate,
        method="exact" if order.method != "greedy" else "greedy, perhaps not the best",
    )


def _name(columns: Columns, index: int) -> str:
    part = columns.parts[index]
    tokens = columns.columns[index].tokens.mean()
    role = segment_name(part.role)
    if part.slot is None:
        return f"{role}: shared text ({tokens:,.0f} tokens)"
    text = next((" ".join(text.split()) for text in columns.texts[index] if text.strip()), "")
    shown = text if len(text) <= MAX_NAME else text[: MAX_NAME - 3] + "..."
    return f"{role}: '{shown}' ({tokens:,.0f} tokens, {columns.num_values(index):,} values)"
