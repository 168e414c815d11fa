"""All lint rules over a sample of a log, what each costs, and the log as it would be if mended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from testbed.advisor.findings import Detected, Finding
from testbed.advisor.moves import choose_moves
from testbed.advisor.relocation import MovedPart, Values
from testbed.advisor.requests import requests_of
from testbed.advisor.rules_drift import find_drift
from testbed.advisor.rules_history import find_rewritten_history
from testbed.advisor.rules_length import find_half_pages, find_short_prefixes
from testbed.advisor.rules_order import find_block_order
from testbed.advisor.rules_tools import find_changing_tools, find_key_order, find_tool_order
from testbed.advisor.rules_values import Columns, find_values, read_columns
from testbed.metrics.bounds import Bound, clairvoyant_bound, sharing_bound
from testbed.metrics.prompt_paths import prompt_paths
from testbed.workloads.formats.record import Record
from testbed.workloads.tokenize import Tokenizer

MIN_LOSS = 0.005
"""Share of the prompt tokens that a finding must cost; what costs less is passed over."""
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

    chosen = choose_moves(mended, columns, values, tokenizer, page_size)
    repair = _Repair(detected, values, chosen)
    now = bound(_Repair([], values, []))
    while True:
        best = bound(repair)
        costs = [_cost(finding, bound(rest), best) for finding, rest in repair.each_left_out()]
        least = min(range(len(costs)), key=lambda i: costs[i].tokens_lost, default=None)
        if least is None or (costs[least].is_dear and best.rate >= now.rate):
            break
        # One at a time: what one finding costs depends on which others are mended.
        repair = repair.each_left_out()[least][1]
    has_template = bool(columns)
    costs += _length_costs(repair.applied(priced), tokenizer, page_size, min_prefix, has_template)
    costs.sort(key=lambda cost: -cost.share_lost)
    return Lint(costs, now, best, len(priced), columns, repair)


@dataclass(frozen=True)
class _Repair:
    """What is mended, in the order in which it was found, then parts moved."""

    detected: list[Detected]
    values: Values
    parts: list[MovedPart]

    def applied(self, records: Sequence[Record]) -> list[Record]:
        mended = list(records)
        for one in self.detected:
            mended = one.mend(mended)
        return self.values.moved(mended, self.parts)

    def each_left_out(self) -> list[tuple[Finding, _Repair]]:
        """Each finding, and the repair of all the others."""
        return [
            *(
                (one.finding, replace(self, detected=[*self.detected[:i], *self.detected[i + 1 :]]))
                for i, one in enumerate(self.detected)
            ),
            *(
                (
                    one.finding,
                    # Two findings may be about one part.
                    replace(
                        self,
                        parts=[
                            other
                            for other in self.parts
                            if (other.template, other.slot) != (one.template, one.slot)
                        ],
                    ),
                )
                for one in self.parts
            ),
        ]


def _cost(finding: Finding, without: Bound, best: Bound) -> Cost:
    """Computed tokens are compared, as a mend may lengthen the prompts."""
    lost = (without.total_tokens - without.hit_tokens) - (best.total_tokens - best.hit_tokens)
    return Cost(finding, lost, lost / without.total_tokens)


def _length_costs(
    records: Sequence[Record],
    tokenizer: Tokenizer,
    page_size: int,
    min_prefix: int,
    has_template: bool,
) -> list[Cost]:
    requests = list(requests_of(records, tokenizer))
    paths = prompt_paths(requests, 1, min_computed_tokens=0)
    matches = clairvoyant_bound(paths, None).request_hit_tokens
    total = int(np.sum(paths.prompt_tokens))
    least = max(page_size, min_prefix)
    found = find_half_pages(records, matches, total, page_size)
    # Prompts without a template have no beginning in common that could be made longer.
    if has_template:
        found += find_short_prefixes(records, matches, least)
    costs = [Cost(finding, lost, lost / total) for finding, lost in found]
    return [cost for cost in costs if cost.is_dear]
