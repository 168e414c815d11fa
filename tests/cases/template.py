"""TEMPLATE-1: hits of prompt templates for every order of their components."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain, count
from typing import Any

import numpy as np

from testbed.metrics.template_order import SegmentColumn, best_order
from tests.cases.instance import Field, Instance, is_list, is_whole, requests_of
from tests.cases.serial import UNLIMITED, build_scheduler, serve_in_order

FIELDS: Mapping[str, Field] = {
    "tokens": Field(
        lambda value: is_list(value, lambda tokens: is_whole(tokens, 1)),
        "a list of lengths, one for each component",
    ),
    "cardinality": Field(lambda value: is_list(value, is_whole), "a list of whole numbers"),
    "rows": Field(
        lambda value: is_list(value, lambda row: is_list(row, is_whole)) and len(value) > 0,
        "a list of rows, each with the number of a value for each component",
    ),
}


def results(instance: Instance) -> dict[str, Any]:
    """Hits by component order on a cache that never evicts, and the best and worst orders.

    `best` is the hits of the order that the rule or the counts find, not the best of those listed.
    """
    rows = instance["rows"]
    num_components = len(instance["tokens"])
    if any(len(row) != num_components for row in rows):
        raise ValueError(f"rows: one value for each of {num_components} components is needed")
    values = _value_tokens(instance)
    hits = {}
    for name in instance.get("hits_by_order", {}):
        order = [int(component) for component in name]
        prompts = [list(chain.from_iterable(values[i, row[i]] for i in order)) for row in rows]
        hits[name] = sum(serve_in_order(build_scheduler(UNLIMITED), requests_of(prompts)).hits)
    best = best_order(
        [
            SegmentColumn(str(i), np.array([row[i] for row in rows]), np.full(len(rows), length))
            for i, length in enumerate(instance["tokens"])
        ]
    ).bound.hit_tokens
    return {
        "total_tokens": len(rows) * sum(instance["tokens"]),
        "hits_by_order": hits,
        "best": best,
        "worst": min(hits.values(), default=0),
        "best_orders": [name for name in hits if hits[name] == best],
    }


def _value_tokens(instance: Instance) -> dict[tuple[int, int], list[int]]:
    """Tokens of their own for each (component, value)."""
    fresh = count()
    used = sorted({pair for row in instance["rows"] for pair in enumerate(row)})
    return {
        (component, value): [next(fresh) for _ in range(instance["tokens"][component])]
        for component, value in used
    }
