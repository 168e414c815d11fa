"""What is kept of a workload to make one like it: counts and lengths, no token and no text.

What a cache can hit depends on when a prefix was used last, how long it is and what follows it.
Each request is therefore described by its relation to the latest request that used its longest
known prefix: how many requests ago, how many pages they share, and how it leaves the other's path:

- `continue`: it goes on from the other's end, as nobody did before (a next turn, a repetition);
- `junction`: it leaves where others have left before (behind a common system prompt);
- `split`: it leaves where nobody had before.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass
from dataclasses import fields as fields_of
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from testbed.whole_file import whole_file
from testbed.workloads.formats.fields import parse_json, require_object, shown
from testbed.workloads.parameters import MAX_LENGTH, require_between, require_int

KIND = "radix-testbed fitted workload 1"
MAX_REQUESTS = 100_000_000
"""More are taken for a mistake."""

MAX_SLICES, SLICE_REQUESTS = 64, 50
"""Equal parts of the time span whose arrivals are counted: as many requests in each, or more."""


@dataclass(frozen=True)
class Bins:
    """Classes of whole numbers from 1 on: each its own to `exact`, then `per_octave` a doubling."""

    exact: int
    per_octave: int

    def of(self, value: int) -> int:
        """The class of a value, from 1 on."""
        if value <= self.exact:
            return value
        return self.exact + 1 + int(np.log2(value / (self.exact + 1)) * self.per_octave)

    def limits(self, number: int) -> tuple[int, int]:
        """The least value of a class, and the first one above it."""
        if number <= self.exact:
            return number, number + 1
        place = number - self.exact - 1
        low, high = (
            int(np.ceil((self.exact + 1) * 2 ** (k / self.per_octave) - 1e-9))
            for k in (place, place + 1)
        )
        return low, max(high, low + 1)


RELATIONS = ("continue", "junction", "split")
FRESH = "fresh"
GAPS = Bins(exact=8, per_octave=4)
SHARED = Bins(exact=16, per_octave=4)
LENGTHS = Bins(exact=16, per_octave=8)
CLIENTS = Bins(exact=8, per_octave=4)
MAX_QUANTILES, QUANTILE_GAPS = 257, 8
"""How many gap_quantiles there are at most, and how many gaps there are to each."""

Histogram = dict[str, int]
"""How many values fall into each class; JSON knows keys of text alone."""


@dataclass(frozen=True)
class Statistics:
    """All that is kept of a workload.

    page_size: tokens; what is shared is counted in whole pages. relations: by relation (`fresh`:
    shares nothing with an earlier one), classes of GAPS of the request's own number, from 1 on.
    reuse: requests by "relation,gap,shared": the class of GAPS of how many requests ago, and that
    of SHARED of the pages in common. new_tokens: by relation and octave of the shared pages
    ("continue,3"), classes of LENGTHS of the tokens behind those pages. output_tokens: likewise, by
    relation. clients: requests of each, most first, without their names, each the middle of its
    class of CLIENTS. same_client: by relation, how many come from the client of the request they
    share with. span_s, arrivals: seconds from the first to the last, and the arrivals in equal
    parts of them. gap_quantiles: of the seconds between arrivals over their mean, in two digits.
    """

    requests: int
    page_size: int
    relations: dict[str, Histogram]
    reuse: Histogram
    new_tokens: dict[str, Histogram]
    output_tokens: dict[str, Histogram]
    clients: list[int]
    same_client: Histogram
    span_s: float
    arrivals: list[int]
    gap_quantiles: list[float]

    def check(self) -> None:
        """Raise ValueError unless the numbers agree with each other, naming the first that do not.

        For statistics that come from a file.
        """
        for name, most in (("requests", MAX_REQUESTS), ("page_size", MAX_LENGTH)):
            require_int(self, name, 1, most)
        totals: Counter[str] = Counter()
        groups: Counter[str] = Counter()
        for key, count in _histogram("reuse", self.reuse).items():
            relation, gap, shared = reuse_class(key)
            if gap > GAPS.of(self.requests):
                raise ValueError(f"reuse holds {shown(key)}; so many requests ago nobody was there")
            totals[relation] += count
            groups[length_group(relation, shared)] += count
        if fresh := self.requests - totals.total():
            totals[FRESH] = groups[FRESH] = fresh
        for name, by_group, expected in (
            ("relations", self.relations, totals),
            ("new_tokens", self.new_tokens, groups),
            ("output_tokens", self.output_tokens, totals),
        ):
            if not isinstance(by_group, dict) or set(by_group) != set(expected):
                raise ValueError(f"{name} is not by {sorted(expected)}, as reuse is")
            for group, total in expected.items():
                counts = _histogram(f"{name}[{group}]", by_group[group])
                for key in counts:
                    _class_number(f"{name}[{group}]", key, LENGTHS.of(MAX_LENGTH))
                if sum(counts.values()) != total:
                    raise ValueError(
                        f"{name}[{group}] counts {sum(counts.values())} values; {total} are needed"
                    )
        if "1" not in self.relations.get(FRESH, {}):
            raise ValueError("relations counts no fresh request of class 1; the first one is")
        for number in range(1, GAPS.of(self.requests) + 1):
            low, above = GAPS.limits(number)
            found = sum(counts.get(str(number), 0) for counts in self.relations.values())
            if found != min(above, self.requests + 1) - low:
                raise ValueError(f"relations counts {found} requests of class {number}, not all")
        for relation, count in _histogram("same_client", self.same_client).items():
            if count > totals[relation] or relation == FRESH:
                raise ValueError(f"same_client counts {count} of {totals[relation]} {relation}")
        for name, values, rounding in (
            ("clients", self.clients, self.requests / 8),
            ("arrivals", self.arrivals, 0),
        ):
            listed = isinstance(values, list) and all(type(v) is int and v >= 0 for v in values)
            if not listed or abs(sum(values) - self.requests) > rounding:
                about = "about " if rounding else ""
                raise ValueError(
                    f"{name} must be whole numbers that sum up to {about}{self.requests}"
                )
        require_between(self, "span_s", 0, 1e11)
        gaps = self.gap_quantiles
        # No gap is longer than all of them together; rounding may add to it.
        most = 2 * self.requests
        if not isinstance(gaps, list) or len(gaps) < 2 or not _never_falls(gaps, most):
            raise ValueError(
                f"gap_quantiles must be at least two numbers from 0 to {most} that never fall"
            )


def length_group(relation: str, shared_class: int) -> str:
    """Which histogram of new tokens a request's goes to, by the class of its shared pages."""
    return relation if relation == FRESH else f"{relation},{shared_class // SHARED.per_octave}"


def save_statistics(statistics: Statistics, path: Path) -> None:
    """Write the statistics as JSON, in one go."""
    text = json.dumps({"kind": KIND, **asdict(statistics)}, indent=1)
    with whole_file(path) as stream:
        stream.write(f"{text}\n".encode())


def load_statistics(path: Path) -> Statistics:
    """Read what save_statistics wrote; ValueError names the file and what is wrong with it."""
    try:
        fields = require_object(parse_json(path.read_text(encoding="utf-8")), "the file")
        if fields.pop("kind", None) != KIND:
            raise ValueError(f"kind is not {KIND!r}, what `testbed workload synthesize` writes")
        known = {f.name for f in fields_of(Statistics)}
        if known != set(fields):
            raise ValueError(f"fields {sorted(known ^ set(fields))} are missing or unknown")
        statistics = Statistics(**fields)
        statistics.check()
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    return statistics


def reuse_class(key: str) -> tuple[str, int, int]:
    """Relation, class of GAPS and class of SHARED of a key of `reuse`; ValueError if it is none."""
    relation, *numbers = key.split(",")
    if relation not in RELATIONS or len(numbers) != 2:
        raise ValueError(f"reuse holds {shown(key)}; relation,gap,shared are needed")
    gap = _class_number("reuse", numbers[0], GAPS.of(MAX_REQUESTS))
    return relation, gap, _class_number("reuse", numbers[1], SHARED.of(MAX_LENGTH))


def _class_number(name: str, key: str, most: int) -> int:
    if not (key.isascii() and key.isdigit() and len(key) <= 3 and 1 <= int(key) <= most):
        raise ValueError(
            f"{name} holds {shown(key)}; the number of a class, from 1 to {most}, is needed"
        )
    return int(key)


def _histogram(name: str, counts: Any) -> Histogram:
    """The field, if it holds counts above 0; ValueError if not."""
    if not isinstance(counts, dict) or not all(
        type(count) is int and count > 0 for count in counts.values()
    ):
        raise ValueError(f"{name} is {shown(counts)}; counts above 0 by class are needed")
    return counts


def _never_falls(values: list[Any], most: int) -> bool:
    numbers = all(type(value) in (int, float) and 0 <= value <= most for value in values)
    return numbers and all(a <= b for a, b in pairwise(values))
