"""Which varying parts to move, and where: chosen by what the prompts then share, token by token."""

from __future__ import annotations

from collections.abc import Sequence

from testbed.advisor.relocation import MovedPart, Values, carried_across
from testbed.advisor.requests import requests_of
from testbed.advisor.rules_values import Columns
from testbed.advisor.template import Slot
from testbed.metrics.bounds import sharing_bound
from testbed.metrics.prompt_paths import prompt_paths
from testbed.workloads.formats.record import Record
from testbed.workloads.tokenize import Tokenizer

MIN_GAIN = 0.005
"""Of the hit rate of all prompts that moving a part must win."""
MIN_CROSSING = 0.01
"""The same where the part leaves its segment, more than it wins inside."""
MAX_TRIED = 300
"""Prompts of a template on which moves are tried."""
MAX_CANDIDATES = 12
"""Of a template, the first ones; what follows them is left where it is."""

Places = dict[Slot, bool]
"""Parts that move; whether each leaves its segment."""


def choose_moves(
    records: Sequence[Record],
    all_columns: Sequence[Columns],
    values: Values,
    tokenizer: Tokenizer,
    page_size: int,
) -> list[MovedPart]:
    """Of the candidates in `values` those whose moves win most.

    Forward: the move that wins most is added until none wins enough. Where no single part does,
    for one behind the other may hold the same text apart, the first parts are tried together. Then
    backward: what wins nothing beside the others is dropped.
    """
    total = sum(sum(one.total_tokens for one in columns.columns) for columns in all_columns)
    chosen: list[MovedPart] = []
    for number, columns in enumerate(all_columns):
        own = [part for part in values.parts if part.template == number]
        if not own:
            continue
        share = sum(one.total_tokens for one in columns.columns) / total
        prompts = [records[i] for i in columns.template.prompts[:MAX_TRIED]]
        search = _Search(prompts, own, values, tokenizer, page_size, share)
        chosen += search.moved(search.best())
    return chosen


class _Search:
    """Moves in the prompts of one template, which have `share` of all tokens."""

    def __init__(
        self,
        prompts: Sequence[Record],
        parts: Sequence[MovedPart],
        values: Values,
        tokenizer: Tokenizer,
        page_size: int,
        share: float,
    ) -> None:
        self._prompts = prompts
        self._parts = parts
        self._values = values
        self._tokenizer = tokenizer
        self._page_size = page_size
        self._share = share
        self._slots = list(dict.fromkeys(part.slot for part in parts))[:MAX_CANDIDATES]
        self._known: dict[frozenset[tuple[Slot, bool]], float] = {}

    def moved(self, places: Places) -> list[MovedPart]:
        """The findings about the parts that move, and where to."""
        return [
            carried_across(part) if places[part.slot] else part
            for part in self._parts
            if part.slot in places
        ]

    def best(self) -> Places:
        """The moves chosen."""
        places: Places = {}
        while True:
            better = self._best_of(places, self._one_more(places))
            if better is None:
                better = self._best_of(places, self._first_ones(places))
            if better is None:
                return self._without_idle(places)
            places = better

    def _one_more(self, places: Places) -> list[Places]:
        """One part more, or one that moves already further."""
        return [
            {**places, slot: across}
            for slot in self._slots
            for across in (False, True)
            if slot not in places or (across and not places[slot])
        ]

    def _first_ones(self, places: Places) -> list[Places]:
        """The first parts that stay, together; or these and all that move already, further."""
        left = [slot for slot in self._slots if slot not in places]
        further = dict.fromkeys(places, True)
        firsts = [left[:count] for count in range(len(left) + 1)]
        return [
            *({**places, **dict.fromkeys(first, False)} for first in firsts[2:]),
            *({**further, **dict.fromkeys(first, True)} for first in firsts),
        ]

    def _best_of(self, places: Places, options: Sequence[Places]) -> Places | None:
        """The option that wins most over what there is, if it wins enough."""
        now = self._rate(places)

        def worth(option: Places) -> float:
            crossings = sum(option.values()) - sum(places.values())
            return self._rate(option) - now - (MIN_CROSSING if crossings else 0.0)

        best = max(options, key=worth, default=None)
        if best is None:
            return None
        crosses = sum(best.values()) > sum(places.values())
        least = MIN_CROSSING if crosses else MIN_GAIN
        return best if self._rate(best) - now >= least else None

    def _without_idle(self, places: Places) -> Places:
        """The moves less those that the others make needless."""
        for slot in reversed(self._slots):
            if slot not in places:
                continue
            others = {one: across for one, across in places.items() if one != slot}
            if self._rate(places) - self._rate(others) < MIN_GAIN:
                places = others
            elif places[slot]:
                inside = {**places, slot: False}
                if self._rate(places) - self._rate(inside) < MIN_CROSSING:
                    places = inside
        return places

    def _rate(self, places: Places) -> float:
        """Of all prompts' tokens, those that these prompts find."""
        key = frozenset(places.items())
        if key not in self._known:
            prompts = self._values.moved(self._prompts, self.moved(places))
            paths = prompt_paths(requests_of(prompts, self._tokenizer), self._page_size)
            self._known[key] = self._share * sharing_bound(paths).rate
        return self._known[key]
