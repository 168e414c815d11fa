"""All lint rules over a sample of a log, what each costs, and the log as it would be if mended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from testbed.advisor.findings import Detected, Finding, Mend
from testbed.advisor.relocation import MovedPart, Values, carried_across
from testbed.advisor.requests import requests_of
from testbed.advisor.rules_drift import find_drift
from testbed.advisor.rules_history import find_rewritten_history
from testbed.advisor.rules_length import find_half_pages, find_short_prefixes
from testbed.advisor.rules_order import find_block_order
from testbed.advisor.rules_tools import find_changing_tools, find_key_order, find_tool_order
from testbed.advisor.rules_values import Columns, find_values, read_columns
from testbed.advisor.template import Slot
from testbed.metrics.bounds import Bound, clairvoyant_bound, sharing_bound
from testbed.metrics.prompt_paths import prompt_paths
from testbed.workloads.formats.record import Record
from testbed.workloads.tokenize import Tokenizer

MIN_LOSS = 0.005
"""Share of the prompt tokens that a finding must cost; what costs less is passed over."""
MIN_CROSSING = 0.01
"""Of the hit rate that a part must win by leaving its segment, which is not done for less."""
MAX_PRICED = 1000
"""Requests on which findings are priced, each with all the others mended."""

DETECTORS: tuple[Callable[[Sequence[Record]], list[Detected]], ...] = (
    find_drift,
    find_tool_order,
    find_key_order,
    find_changing_tools,
    find_block_order,
    find_rewritten_history,
)
"""Each sees the log with the findings of those before it mended."""


@dataclass(frozen=True)
class Cost:
    """What a finding costs: prompt tokens of the priced requests that are computed anew if all
    other findings are mended and this one is not; and their share of these requests' tokens."""

    finding: Finding
    tokens_lost: int
    share_lost: float

    @property
    def is_dear(self) -> bool:
        """Whether it is worth reporting."""
        return self.share_lost >= MIN_LOSS


@dataclass(frozen=True)
class Lint:
    """costs: the findings, dearest first. now, mended: sharing bounds of the priced requests.

    num_priced: how many they are. columns: the templates found, the most used first.
    """

    costs: list[Cost]
    now: Bound
    mended: Bound
    num_priced: int
    columns: list[Columns]
    _repair: _Repair

    def mend(self, records: Sequence[Record]) -> list[Record]:
        """The requests as the mended template would have sent them."""
        return self._repair.applied(records)


def lint(records: Sequence[Record], tokenizer: Tokenizer, page_size: int, min_prefix: int) -> Lint:
    """Run the rules. min_prefix: tokens from which on a prefix is cached, if more than a page."""
    detected: list[Detected] = []
    mended: Sequence[Record] = records
    for detect in DETECTORS:
        for one in detect(mended):
            detected.append(one)
            mended = one.mend(mended)
    reader, columns = read_columns(mended, tokenizer)
    values = find_values(mended, reader, columns)
    priced = records[:MAX_PRICED]

    def bound(repair: _Repair) -> Bound:
        requests = requests_of(repair.applied(priced), tokenizer)
        return sharing_bound(prompt_paths(requests, page_size))

    repair = _carried_across(_Repair([one.mend for one in detected], values, values.parts), bound)
    best = bound(repair)
    mend_costs = [
        _cost(one.finding, bound(repair.without_mend(i)), best) for i, one in enumerate(detected)
    ]
    part_costs = [
        _cost(part.finding, bound(repair.without_part(part)), best) for part in repair.parts
    ]
    repair = _Repair(
        [mend for mend, cost in zip(repair.mends, mend_costs, strict=True) if cost.is_dear],
        values,
        [part for part, cost in zip(repair.parts, part_costs, strict=True) if cost.is_dear],
    )
    costs = [cost for cost in (*mend_costs, *part_costs) if cost.is_dear]
    costs += _length_costs(repair.applied(priced), tokenizer, page_size, min_prefix)
    costs.sort(key=lambda cost: -cost.share_lost)
    now = bound(_Repair([], values, []))
    return Lint(costs, now, bound(repair), len(priced), columns, repair)


@dataclass(frozen=True)
class _Repair:
    """Mends in the order in which they were found, then parts moved."""

    mends: list[Mend]
    values: Values
    parts: list[MovedPart]

    def applied(self, records: Sequence[Record]) -> list[Record]:
        mended = list(records)
        for mend in self.mends:
            mended = mend(mended)
        return self.values.moved(mended, self.parts)

    def without_mend(self, index: int) -> _Repair:
        mends = [mend for i, mend in enumerate(self.mends) if i != index]
        return _Repair(mends, self.values, self.parts)

    def without_part(self, part: MovedPart) -> _Repair:
        stays = part.template, part.slot
        parts = [one for one in self.parts if (one.template, one.slot) != stays]
        return _Repair(self.mends, self.values, parts)


def _carried_across(repair: _Repair, bound: Callable[[_Repair], Bound]) -> _Repair:
    """The repair with those parts moved to the end of the prompt that win by it."""

    def across(slots: set[tuple[int, Slot]]) -> _Repair:
        parts = [
            carried_across(part) if (part.template, part.slot) in slots else part
            for part in repair.parts
        ]
        return replace(repair, parts=parts)

    inside = {(part.template, part.slot) for part in repair.parts if not part.across}
    chosen = set(inside)
    if not inside or bound(across(chosen)).rate - bound(repair).rate < MIN_CROSSING:
        return repair
    for one in sorted(inside):
        if len(chosen) > 1:
            gain = bound(across(chosen)).rate - bound(across(chosen - {one})).rate
            if gain < MIN_CROSSING:
                chosen.remove(one)
    return across(chosen)


def _cost(finding: Finding, without: Bound, best: Bound) -> Cost:
    """Computed tokens are compared, as a mend may lengthen the prompts."""
    lost = (without.total_tokens - without.hit_tokens) - (best.total_tokens - best.hit_tokens)
    return Cost(finding, lost, lost / without.total_tokens)


def _length_costs(
    records: Sequence[Record], tokenizer: Tokenizer, page_size: int, min_prefix: int
) -> list[Cost]:
    requests = list(requests_of(records, tokenizer))
    paths = prompt_paths(requests, 1, min_computed_tokens=0)
    matches = clairvoyant_bound(paths, None).request_hit_tokens
    total = int(np.sum(paths.prompt_tokens))
    least = max(page_size, min_prefix)
    found = [
        *find_half_pages(records, matches, total, page_size),
        *find_short_prefixes(records, matches, least),
    ]
    return [Cost(finding, lost, lost / total) for finding, lost in found]
