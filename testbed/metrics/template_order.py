"""Which order of a prompt's segments shares the most: a bound for any order, and the best one.

n requests put one value into each segment. Served in order o on a cache that never evicts, they
compute D(o), the tokens of segment o_j summed over the distinct value tuples of (o_1 .. o_j), over
all j, and find everything else cached. Exact for pages of one token and values that share no
beginning with each other. `prompt_paths` and `sharing_bound` are exact for any requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from typing import Literal

import numpy as np
import numpy.typing as npt

from testbed.metrics.bounds import Bound

MAX_EXHAUSTIVE = 8
"""So many segments that are neither constant nor new in every request get the exact best order."""

Ints = npt.NDArray[np.int64]
Method = Literal["rule", "exhaustive", "greedy"]


@dataclass(frozen=True)
class SegmentColumn:
    """What every request puts into one segment.

    values: int64[requests], equal numbers for equal text; or int64[requests, pieces] where values
    may share their first pieces, as histories do, and whoever has fewer fills up with -1. tokens:
    lengths, of the same shape; 0 where a request has nothing there. Equal values have equal
    lengths. ValueError for other shapes.
    """

    name: str
    values: Ints
    tokens: Ints

    def __post_init__(self) -> None:
        for field in ("values", "tokens"):
            array = np.asarray(getattr(self, field), dtype=np.int64)
            object.__setattr__(self, field, array[:, None] if array.ndim == 1 else array)
        if self.values.ndim != 2 or self.values.shape != self.tokens.shape:
            raise ValueError(
                f"SegmentColumn {self.name!r}: values {self.values.shape} and tokens "
                f"{self.tokens.shape} need the same shape, (requests,) or (requests, pieces)"
            )

    @property
    def total_tokens(self) -> int:
        """Tokens of the segment in all requests."""
        return int(self.tokens.sum())

    @cached_property
    def kinds(self) -> list[tuple[Ints, int]]:
        """For each piece, the values as numbers from 0, int64[requests], and how many there are."""
        found = (np.unique(piece, return_inverse=True) for piece in self.values.T)
        return [(inverse, len(values)) for values, inverse in found]


@dataclass(frozen=True)
class BestOrder:
    """order: positions in the columns given. distinct_tokens: D(order).

    method: `rule` and `exhaustive` are exact; `greedy` is not, and no neighbours swapped would
    improve it.
    """

    order: tuple[int, ...]
    distinct_tokens: int
    total_tokens: int
    method: Method

    @property
    def bound(self) -> Bound:
        """What a cache without limit finds in this order."""
        return Bound(self.total_tokens - self.distinct_tokens, self.total_tokens)


def order_bound(columns: Sequence[SegmentColumn], order: Sequence[int] | None = None) -> Bound:
    """What a cache without limit finds in this order of the columns; None leaves it as it is.

    ValueError unless the columns are of the same requests and `order` has each of them once.
    """
    num_requests = _num_requests(columns)
    order = range(len(columns)) if order is None else order
    if sorted(order) != list(range(len(columns))):
        raise ValueError(f"order={list(order)}: each of 0 to {len(columns) - 1} is needed once")
    groups = np.zeros(num_requests, dtype=np.int64)
    distinct = 0
    for column in order:
        added, groups = _extended(groups, columns[column])
        distinct += added
    total = sum(column.total_tokens for column in columns)
    return Bound(total - distinct, total)


def best_order(columns: Sequence[SegmentColumn], boundaries: Sequence[int] = ()) -> BestOrder:
    """The order with the fewest distinct tokens; the order given if none is better.

    Constant segments come first and those that are new in every request last, which is never worse.
    The rest goes by `rule_order` where every combination of values occurs, else by the counts: all
    orders, through the subsets, up to MAX_EXHAUSTIVE segments, and greedily beyond. boundaries:
    columns that start a new part of the prompt, ascending; no segment leaves its part.
    O(2^segments * segments * requests log requests) at the worst.
    """
    num_requests = _num_requests(columns)
    edges = [0, *boundaries, len(columns)]
    if any(low >= high for low, high in pairwise(edges)):
        raise ValueError(
            f"boundaries={list(boundaries)}: ascending numbers from 1 to {len(columns) - 1} "
            "are needed"
        )
    groups = np.zeros(num_requests, dtype=np.int64)
    order: list[int] = []
    methods: set[Method] = set()
    for low, high in pairwise(edges):
        part, method = _best_part(columns, list(range(low, high)), groups)
        methods.add(method)
        order += part
        for column in part:
            _, groups = _extended(groups, columns[column])
    weakest: Method = "greedy" if "greedy" in methods else "exhaustive"
    bound = order_bound(columns, order)
    if order_bound(columns).hit_tokens >= bound.hit_tokens:
        order, bound = list(range(len(columns))), order_bound(columns)
    return BestOrder(
        tuple(order),
        bound.total_tokens - bound.hit_tokens,
        bound.total_tokens,
        "rule" if methods == {"rule"} else weakest,
    )


def rule_order(tokens: Sequence[float], num_values: Sequence[int]) -> tuple[int, ...]:
    """Segments by t * k / (k - 1) descending, t their mean length and k their number of values.

    Constants (k = 1) come first. The best order when values are independent and all combinations
    occur: neighbours a, b cost t_a k_a + t_b k_a k_b, for each tuple before them, which the swap
    improves unless t_a k_a / (k_a - 1) >= t_b k_b / (k_b - 1).
    """
    return tuple(sorted(range(len(tokens)), key=lambda j: -_rank(tokens[j], num_values[j])))


def _rank(tokens: float, num_values: float) -> float:
    return tokens * num_values / (num_values - 1) if num_values > 1 else np.inf


def _best_part(
    columns: Sequence[SegmentColumn], part: list[int], groups: Ints
) -> tuple[list[int], Method]:
    """The best order of some columns behind a prefix that `groups` tells apart, and how found."""
    num_values = {j: _count(_extended(np.zeros_like(groups), columns[j])[1]) for j in part}
    first = [j for j in part if num_values[j] == 1]
    last = [j for j in part if num_values[j] > 1 and _is_new_everywhere(columns[j])]
    middle = [j for j in part if j not in first and j not in last]
    if _all_combinations(columns, middle, num_values) and not groups.any():
        means = [_mean_tokens(columns[j]) for j in middle]
        ranked = [middle[i] for i in rule_order(means, [num_values[j] for j in middle])]
        return first + ranked + last, "rule"
    method: Method = "exhaustive" if len(middle) <= MAX_EXHAUSTIVE else "greedy"
    search = _exhaustive if method == "exhaustive" else _greedy
    return first + search(columns, middle, groups) + last, method


def _exhaustive(columns: Sequence[SegmentColumn], middle: list[int], groups: Ints) -> list[int]:
    """The cheapest order through the subsets: a segment's cost depends on the set before it."""
    cheapest: dict[frozenset[int], tuple[int, list[int]]] = {frozenset(middle): (0, [])}

    def rest_of(before: frozenset[int], groups: Ints) -> tuple[int, list[int]]:
        if before not in cheapest:
            options = []
            for j in middle:
                if j not in before:
                    added, refined = _extended(groups, columns[j])
                    cost, rest = rest_of(before | {j}, refined)
                    options.append((added + cost, [j, *rest]))
            cheapest[before] = min(options)
        return cheapest[before]

    return rest_of(frozenset(), groups)[1]


def _greedy(columns: Sequence[SegmentColumn], middle: list[int], groups: Ints) -> list[int]:
    """By the rule with the numbers of values behind what is already placed, then by swaps."""

    def conditional_rank(groups: Ints, j: int) -> float:
        added, refined = _extended(groups, columns[j])
        tuples = _count(refined)
        return _rank(added / tuples, tuples / _count(groups))

    order: list[int] = []
    prefix = groups
    while len(order) < len(middle):
        free = [j for j in middle if j not in order]
        chosen = max(free, key=partial(conditional_rank, prefix))
        order.append(chosen)
        _, prefix = _extended(prefix, columns[chosen])
    improved = True
    while improved:
        improved = False
        prefix = groups
        for place in range(len(order) - 1):
            here, there = order[place], order[place + 1]
            if _cost(columns, prefix, there, here) < _cost(columns, prefix, here, there):
                order[place : place + 2] = [there, here]
                improved = True
            _, prefix = _extended(prefix, columns[order[place]])
    return order


def _cost(columns: Sequence[SegmentColumn], groups: Ints, *order: int) -> int:
    total = 0
    for j in order:
        added, groups = _extended(groups, columns[j])
        total += added
    return total


def _extended(groups: Ints, column: SegmentColumn) -> tuple[int, Ints]:
    """Distinct tokens that the column adds behind each group of requests, and the new groups.

    groups: int64[requests], equal for requests that are alike so far, 0 to their number - 1.
    """
    added = 0
    for (kinds, num_kinds), tokens in zip(column.kinds, column.tokens.T, strict=True):
        pairs = groups * num_kinds + kinds
        _, at, groups = np.unique(pairs, return_index=True, return_inverse=True)
        added += int(tokens[at].sum())
    return added, groups


def _count(groups: Ints) -> int:
    return int(groups.max()) + 1


def _is_new_everywhere(column: SegmentColumn) -> bool:
    """Whether no two requests share even the beginning of the segment."""
    return len(np.unique(column.values[:, 0])) == len(column.values)


def _all_combinations(
    columns: Sequence[SegmentColumn], middle: list[int], num_values: dict[int, int]
) -> bool:
    groups = np.zeros(len(columns[0].values), dtype=np.int64)
    product = 1
    for j in middle:
        product *= num_values[j]
        if columns[j].values.shape[1] > 1 or product > len(groups):
            return False
        _, groups = _extended(groups, columns[j])
    return _count(groups) == product


def _mean_tokens(column: SegmentColumn) -> float:
    """Mean length of the distinct values of a column without pieces."""
    _, at = np.unique(column.values, return_index=True)
    return float(column.tokens[at].mean())


def _num_requests(columns: Sequence[SegmentColumn]) -> int:
    if not columns:
        raise ValueError("columns: at least one is needed")
    lengths = {column.name: len(column.values) for column in columns}
    num_requests = max(lengths.values())
    if min(lengths.values()) < num_requests or not num_requests:
        raise ValueError(f"columns of {lengths} requests: as many in each, at least 1, are needed")
    return num_requests
