"""A workload made from the statistics of another one, which hold none of its tokens."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf, log2
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from testbed.core.request import Request
from testbed.workloads.data_folder import find_data_file
from testbed.workloads.fitted_statistics import (
    FRESH,
    GAPS,
    LENGTHS,
    SHARED,
    Bins,
    Histogram,
    Statistics,
    length_group,
    load_statistics,
    reuse_class,
)
from testbed.workloads.parameters import MAX_LENGTH, require_int
from testbed.workloads.prefix_hashes import Hashes
from testbed.workloads.prefix_tree import PrefixTree
from testbed.workloads.tokens import (
    mixed_tokens,
    output_tokens,
    require_token_space,
    require_vocab,
)

Cell = tuple[int, int]
"""Class of GAPS, class of SHARED."""

TRIES = 64
"""Earlier requests that are looked at for one that can be shared with as the statistics say."""


@dataclass(frozen=True, eq=False)
class FittedWorkload:
    """Requests that arrive, share and last as those did that `testbed workload synthesize` read.

    path: the statistics, a file or a name inside the data folder. num_requests: how many; None for
    as many as there were. Each request draws its relation to an earlier one and takes the nearest
    that allows it (fitted_statistics.py). Hit rates against cache size come out close to the
    original's; what is drawn independently (lengths of new text, outputs, clients) keeps its
    distribution, not its order. Every walk is the same for a seed.
    """

    path: str | Path
    num_requests: int | None = None
    vocab: int | None = None
    seed: int = 0
    name: str = "fitted"
    skipped_lines: ClassVar[int] = 0
    _rows: _Rows = field(init=False, repr=False)
    _page_size: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.num_requests is not None:
            require_int(self, "num_requests", 1)
        require_vocab(self)
        require_int(self, "seed", 0)
        statistics = load_statistics(find_data_file(self.path))
        rows = _Generator(statistics, self.seed).rows(self.num_requests or statistics.requests)
        object.__setattr__(self, "_rows", rows)
        object.__setattr__(self, "_page_size", statistics.page_size)
        require_token_space(self, (int(rows.pages.max()) + 1) * statistics.page_size)

    def __len__(self) -> int:
        return len(self._rows.lengths)

    def __iter__(self) -> Iterator[Request]:
        rows = self._rows
        offsets = np.arange(self._page_size)
        first = 0
        for i, length in enumerate(rows.lengths.tolist()):
            after = first - -length // self._page_size
            pages = rows.pages[first:after, None]
            numbers = (pages * self._page_size + offsets).reshape(-1)[:length]
            first = after
            yield Request(
                id=i,
                prompt=numbers.astype(np.int32)
                if self.vocab is None
                else mixed_tokens(numbers, self.vocab, self.seed),
                output=output_tokens(i, int(rows.outputs[i]), self.vocab, self.seed),
                arrival=float(rows.times[i]),
                client=rows.clients[i],
            )


class _Rows(NamedTuple):
    """times: seconds. clients: names. pages: their numbers, int64, prompt by prompt, the last of a
    prompt may be partial."""

    times: npt.NDArray[np.float64]
    lengths: npt.NDArray[np.int64]
    outputs: npt.NDArray[np.int64]
    clients: list[str]
    pages: npt.NDArray[np.int64]


class _Histogram:
    """Draws a class in proportion to its count."""

    def __init__(self, counts: Histogram) -> None:
        self._classes = [int(key) for key in counts]
        self._shares = np.cumsum(list(counts.values())) / sum(counts.values())

    def draw(self, bins: Bins, generator: np.random.Generator) -> int:
        """A value: any of its class is as likely."""
        return int(generator.integers(*bins.limits(self._classes[_drawn(self._shares, generator)])))


class _Generator:
    """Makes the requests one after the other, each from those before it."""

    def __init__(self, statistics: Statistics, seed: int) -> None:
        self._statistics = statistics
        streams = np.random.SeedSequence(seed).spawn(4)
        self._reuse, self._lengths, self._clients, self._times = map(np.random.default_rng, streams)
        self._decks: dict[int, list[int]] = {}
        self._cells, self._cell_shares = self._shares_of_cells()
        self._new_tokens = {k: _Histogram(v) for k, v in statistics.new_tokens.items()}
        self._output_tokens = {k: _Histogram(v) for k, v in statistics.output_tokens.items()}
        self._known_clients = 0
        self._client_deck: list[int] = []
        # By client: requests it got without being drawn.
        self._undrawn: Counter[int] = Counter()
        # Once for each request it had.
        self._all_clients = np.repeat(np.arange(len(statistics.clients)), statistics.clients)
        self._same_client = {
            relation: count / sum(statistics.output_tokens[relation].values())
            for relation, count in statistics.same_client.items()
        }
        self._tree = PrefixTree()
        self._num_pages: list[int] = []
        # Requests by the class of their pages, for those that continue one.
        self._by_pages: dict[int, list[int]] = {}

    def rows(self, count: int) -> _Rows:
        statistics = self._statistics
        size = statistics.page_size
        lengths: list[int] = []
        outputs: list[int] = []
        clients: list[int] = []
        all_pages: list[Hashes] = []
        unused = 0
        for i in range(count):
            relation, shared_class, node, shared = self._relation(i)
            other = self._tree.latest[node] if shared else -1
            group = length_group(relation, shared_class)
            new = self._new_tokens[group].draw(LENGTHS, self._lengths)
            length = min(shared * size + new, MAX_LENGTH)
            outputs.append(self._output_tokens[relation].draw(LENGTHS, self._lengths))
            clients.append(self._client(relation, clients[other] if shared else None))
            own = -(-length // size) - shared
            fresh = np.arange(unused, unused + own, dtype=np.uint64)
            unused += own
            path = np.concatenate((self._tree.prefix(node, shared), fresh))
            all_pages.append(path.astype(np.int64))
            lengths.append(length)
            self._add(path[: length // size])
        return _Rows(
            times=self._arrivals(count),
            lengths=np.array(lengths),
            outputs=np.array(outputs),
            clients=[f"client-{number + 1}" for number in clients],
            pages=np.concatenate(all_pages),
        )

    def _next_relation(self, i: int) -> str:
        """As the requests of the same class of numbers had them, in any order.

        Without replacement, so that what is rare (a new system prompt) is as rare as it was.
        """
        known = self._statistics.relations
        number = min(GAPS.of(i + 1), GAPS.of(self._statistics.requests))
        if not self._decks.get(number):
            counts = [histogram.get(str(number), 0) for histogram in known.values()]
            deck = np.repeat(np.arange(len(known)), counts)
            self._decks[number] = self._reuse.permutation(deck).tolist()
        return list(known)[self._decks[number].pop()]

    def _shares_of_cells(self) -> tuple[dict[str, list[Cell]], dict[str, npt.NDArray[np.float64]]]:
        """Classes of gap and shared pages, and their cumulative chances, by relation.

        A gap was only possible for requests that came late enough, so long ones count for more.
        """
        cells: dict[str, list[Cell]] = {}
        weights: dict[str, list[float]] = {}
        for key, count in self._statistics.reuse.items():
            relation, gap, shared = reuse_class(key)
            late_enough = max(self._statistics.requests - GAPS.limits(gap)[0], 1)
            cells.setdefault(relation, []).append((gap, shared))
            weights.setdefault(relation, []).append(count / late_enough)
        return cells, {name: np.cumsum(row) / sum(row) for name, row in weights.items()}

    def _relation(self, i: int) -> tuple[str, int, int, int]:
        """Relation, class of the shared pages, and node and pages that they end at."""
        relation = self._next_relation(i)
        if relation != FRESH:
            for _ in range(TRIES):
                cell = _drawn(self._cell_shares[relation], self._reuse)
                gap_class, shared_class = self._cells[relation][cell]
                gap = int(self._reuse.integers(*GAPS.limits(gap_class)))
                found = self._find(relation, i - gap, shared_class) if gap <= i else None
                if found is not None:
                    return relation, shared_class, *found
        return FRESH, 0, -1, 0

    def _find(self, relation: str, target: int, shared_class: int) -> tuple[int, int] | None:
        """Where a request can leave an earlier one so, as near to `target` as can be."""
        low, high = SHARED.limits(shared_class)
        if relation == "continue":
            return self._find_end(target, low)
        found = self._find_junction(target, low, high) if relation == "junction" else None
        # What is a junction later begins as a split.
        return found or self._find_split(target, int(self._reuse.integers(low, high)))

    def _find_junction(self, target: int, low: int, high: int) -> tuple[int, int] | None:
        tree = self._tree
        for other in _outward(target, len(self._num_pages)):
            node = tree.end_node[other]
            # Above a node that somebody used later, so was every other.
            while node >= 0 and tree.latest[node] == other and tree.end[node] >= low:
                if tree.end[node] < high and not tree.is_leaf[node]:
                    return node, tree.end[node]
                node = tree.parent[node]
        return None

    def _find_split(self, target: int, shared: int) -> tuple[int, int] | None:
        tree = self._tree
        for other in _outward(target, len(self._num_pages)):
            if self._num_pages[other] > shared:
                node = tree.node_at(other, shared)
                if tree.latest[node] == other and tree.end[node] > shared:
                    return node, shared
        return None

    def _find_end(self, target: int, shared: int) -> tuple[int, int] | None:
        """The end of a whole prompt that nobody has gone on from: as long ago and as long as asked.

        A doubling of the one counts as much as a doubling of the other; what is too fresh counts
        twice, for it can still be taken when its time has come.
        """
        now = len(self._num_pages)
        best, found = inf, None
        for listed in self._by_pages.values():
            other = self._nearest_end(listed, target)
            if other is not None:
                pages = self._num_pages[other]
                late = log2((now - other) / (now - target))
                miss = max(late, -2 * late) + abs(log2(pages / shared))
                if miss < best:
                    best, found = miss, (self._tree.end_node[other], pages)
        return found

    def _nearest_end(self, listed: list[int], target: int) -> int | None:
        tree = self._tree
        while listed:
            place = bisect_left(listed, target)
            before = place and target - listed[place - 1]
            if place == len(listed) or (place and before <= listed[place] - target):
                place -= 1
            other = listed[place]
            node = tree.end_node[other]
            if tree.latest[node] == other and tree.is_leaf[node]:
                return other
            del listed[place]
        return None

    def _add(self, path: Hashes) -> None:
        self._tree.add(path)
        if len(path):
            self._by_pages.setdefault(SHARED.of(len(path)), []).append(len(self._num_pages))
        self._num_pages.append(len(path))

    def _client(self, relation: str, other: int | None) -> int:
        """The number of the client; `other`: that of the request it shares with.

        While some client is still to come, what shares nothing is the next one's first request. The
        rest is drawn without replacement, less what a client has already: each comes to its own
        number of requests, unless sharing gives it more.
        """
        if other is None and self._known_clients < len(self._statistics.clients):
            other = self._known_clients
            self._known_clients += 1
        elif other is not None and self._clients.random() >= self._same_client.get(relation, 0.0):
            other = None
        if other is not None:
            self._undrawn[other] += 1
            return other
        while True:
            if not self._client_deck:
                self._client_deck = self._clients.permutation(self._all_clients).tolist()
            drawn = self._client_deck.pop()
            if not self._undrawn[drawn]:
                return drawn
            self._undrawn[drawn] -= 1

    def _arrivals(self, count: int) -> npt.NDArray[np.float64]:
        """Seconds: independent gaps, on a clock that runs as the arrivals of the original did."""
        statistics = self._statistics
        quantiles = np.array(statistics.gap_quantiles)
        places = np.linspace(0, 1, len(quantiles))
        gaps = np.interp(self._times.random(count - 1), places, quantiles)
        # Of what is drawn between the quantiles; that of the original's gaps is 1.
        mean = float(np.trapezoid(quantiles, places))
        gaps /= mean or 1.0
        clock = np.concatenate(([0.0], np.cumsum(gaps)))
        arrived = np.concatenate(([0], np.cumsum(statistics.arrivals)))
        ends = np.linspace(0, statistics.span_s, len(arrived))
        rounds, rest = np.divmod(clock, statistics.requests)
        return rounds * statistics.span_s + np.interp(rest, arrived, ends)


def _drawn(shares: npt.NDArray[np.float64], generator: np.random.Generator) -> int:
    """A place of cumulative chances."""
    return int(np.searchsorted(shares, generator.random(), "right"))


def _outward(target: int, end: int) -> Iterator[int]:
    """The numbers from 0 to end - 1 nearest to the target, at most TRIES of them."""
    for away in range(TRIES // 2):
        if target - away >= 0:
            yield target - away
        if away and target + away < end:
            yield target + away
