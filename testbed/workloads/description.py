"""What a file of requests looks like, in one walk: lengths, arrivals, turns, clients, sharing."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from testbed.workloads.page_counts import PageCounts
from testbed.workloads.prefix_hashes import Hashes, PrefixHasher, hash_of_text
from testbed.workloads.tokenize import TokenizedRecord

SAMPLE, SAMPLE_PAGES = 10_000, 1 << 22
"""Requests whose own sharing is looked at, and all their pages, at most; how often each page is
used is counted over all requests."""

BUCKETS = 100
"""Equal parts of the time span, for the busiest of them."""


@dataclass(frozen=True)
class Lengths:
    """total, p50, p90, p99 and most are tokens."""

    total: int
    p50: float
    p90: float
    p99: float
    most: int


@dataclass(frozen=True)
class ArrivalsShape:
    """span_s: from the first to the last. cv: of the gaps between arrivals; 1 is Poisson.

    peak_to_mean: requests in the busiest hundredth of the span over the mean. out_of_order:
    requests logged after a later one.
    """

    span_s: float
    rate_per_s: float
    cv: float
    peak_to_mean: float
    out_of_order: int


@dataclass(frozen=True)
class SharedPrefix:
    """tokens: its length. requests: how many begin with it. line: where one of them stands."""

    tokens: int
    requests: int
    line: int


@dataclass(frozen=True)
class Sharing:
    """At pages of page_size tokens: what prompts have in common.

    bound: the hit rate that no order and no capacity can exceed, in a cache that begins empty
    (prompts alone: outputs that return in later prompts can add to it). depth: tokens that a
    request's prompt shares with any other request's, over the sampled requests. most_shared: those
    that save most among the prefixes behind which half of the requests or more part ways or end.
    """

    page_size: int
    bound: float
    distinct_pages: int
    sampled: int
    depth: Lengths
    most_shared: list[SharedPrefix]


@dataclass(frozen=True)
class ClientShare:
    """One client's part; bound: its sharing bound if clients share nothing with each other."""

    name: str
    requests: int
    prompt_tokens: int
    bound: float | None


@dataclass(frozen=True)
class Description:
    """The whole page. None: the file does not tell.

    from_text: requests whose tokens were made from text. outputs: of those outputs_known requests
    that tell theirs. turns: answers in the prompt so far. sessions: how many are named. clients:
    those with most prompt tokens; client_count: all.
    """

    requests: int
    from_text: int
    prompts: Lengths
    outputs: Lengths | None
    outputs_known: int
    arrivals: ArrivalsShape | None
    arrivals_known: int
    turns: Lengths
    sessions: int
    sharing: Sharing | None
    client_count: int
    clients: list[ClientShare]


def describe(
    records: Iterable[TokenizedRecord], page_size: int, top: int = 10, seed: int = 0
) -> Description:
    """The description of a stream of requests.

    Memory: 20 bytes for each distinct page (twice that for more than one client), 16 more while new
    ones are sorted in, and 40 bytes a request. Raises ValueError if there are none.
    """
    lengths, outputs, turns, times = array("q"), array("q"), array("q"), array("d")
    sessions: set[int] = set()
    requests_of: Counter[str] = Counter()
    tokens_of: Counter[str] = Counter()
    sharing = _SharingCounts(page_size, seed)
    from_text = 0
    for tokenized in records:
        record = tokenized.record
        prompt = tokenized.prompt
        length = record.prompt_length if record.prompt_length is not None else len(prompt)
        lengths.append(length)
        from_text += any(isinstance(segment.content, str) for segment in record.segments)
        turns.append(record.turn)
        requests_of[record.client] += 1
        tokens_of[record.client] += length
        if tokenized.output_length is not None:
            outputs.append(tokenized.output_length)
        if record.arrival is not None:
            times.append(record.arrival)
        if record.session is not None:
            sessions.add(hash_of_text(record.session))
        if record.segments:
            sharing.add(tokenized)
    if not lengths:
        raise ValueError("there are no requests to describe; at least one is needed")
    has_prompts = sharing.requests == len(lengths)
    bounds = sharing.bounds_of_clients() if has_prompts else {}
    most = sorted(tokens_of, key=lambda name: (-tokens_of[name], name))[:top]
    return Description(
        requests=len(lengths),
        from_text=from_text,
        prompts=_lengths(lengths),
        outputs=_lengths(outputs) if outputs else None,
        outputs_known=len(outputs),
        arrivals=_arrivals(np.array(times)) if len(times) > 1 else None,
        arrivals_known=len(times),
        turns=_lengths(turns),
        sessions=len(sessions),
        sharing=sharing.result(top) if has_prompts else None,
        client_count=len(tokens_of),
        clients=[
            ClientShare(name, requests_of[name], tokens_of[name], bounds.get(name)) for name in most
        ],
    )


class _SharingCounts:
    """Pages of all prompts, by client too, and the pages of some sampled ones."""

    def __init__(self, page_size: int, seed: int) -> None:
        self.requests = 0
        self._hasher = PrefixHasher(page_size)
        self._counts = PageCounts()
        self._by_client = PageCounts()
        self._client_numbers: dict[str, int] = {}
        self._client_tokens: list[int] = []
        self._generator = np.random.default_rng(seed)
        self._threshold = 1.0
        self._sample: list[tuple[float, int, Hashes]] = []
        self._sampled_pages = 0

    def add(self, tokenized: TokenizedRecord) -> None:
        prompt = tokenized.prompt
        hashes = self._hasher.full_pages(prompt)
        lookups = (len(prompt) - 1) // self._hasher.page_size
        self.requests += 1
        self._add_to_client(tokenized.record.client, hashes, lookups, len(prompt))
        self._counts.add(hashes, lookups)
        self._add_to_sample(tokenized.record.line, hashes)

    def _add_to_client(self, name: str, hashes: Hashes, lookups: int, tokens: int) -> None:
        if name not in self._client_numbers:
            if len(self._client_numbers) == 1:
                # So far the pages of all were the first client's.
                self._by_client = self._counts.copy()
            self._client_numbers[name] = len(self._client_numbers)
            self._client_tokens.append(0)
        number = self._client_numbers[name]
        self._client_tokens[number] += tokens
        if len(self._client_numbers) > 1:
            # The first one's keep their hashes, as they were counted before.
            salt = np.uint64(hash_of_text(name) if number else 0)
            self._by_client.add(hashes ^ salt, lookups, number)

    def _add_to_sample(self, line: int, hashes: Hashes) -> None:
        rank = float(self._generator.random())
        if rank >= self._threshold:
            return
        self._sample.append((rank, line, hashes))
        self._sampled_pages += len(hashes)
        while len(self._sample) > SAMPLE or (
            self._sampled_pages > SAMPLE_PAGES and len(self._sample) > 1
        ):
            self._threshold /= 2
            self._sample = [entry for entry in self._sample if entry[0] < self._threshold]
            self._sampled_pages = sum(len(entry[2]) for entry in self._sample)

    def result(self, top: int) -> Sharing:
        page_size = self._hasher.page_size
        hit_pages = int(self._counts.hit_pages().sum())
        depths: list[int] = []
        found: dict[int, SharedPrefix] = {}
        sampled = [hashes for _, _, hashes in self._sample]
        ends_at = np.cumsum([len(hashes) for hashes in sampled])
        counts_of = np.split(self._counts.counts(np.concatenate(sampled)), ends_at[:-1])
        for (_, line, hashes), counts in zip(self._sample, counts_of, strict=True):
            shared = int((counts > 1).sum())
            depths.append(shared * page_size)
            # Where at least half of those that came so far part ways.
            ends = np.append(counts[1:], 0) * 2 <= counts
            for place in np.flatnonzero(ends[:shared]).tolist():
                prefix = SharedPrefix((place + 1) * page_size, int(counts[place]), line)
                found.setdefault(int(hashes[place]), prefix)
        saved = sorted(found.values(), key=lambda p: (-p.tokens * (p.requests - 1), p.line))
        return Sharing(
            page_size=page_size,
            bound=hit_pages * page_size / sum(self._client_tokens),
            distinct_pages=len(self._counts.hashes),
            sampled=len(self._sample),
            depth=_lengths(depths or [0]),
            most_shared=saved[:top],
        )

    def bounds_of_clients(self) -> dict[str, float]:
        """The sharing bound of each client's own requests."""
        single = len(self._client_numbers) == 1
        hits = (self._counts if single else self._by_client).hit_pages()
        hits = np.append(hits, np.zeros(len(self._client_tokens) - len(hits), dtype=np.int64))
        rates = hits * self._hasher.page_size / np.array(self._client_tokens)
        return dict(zip(self._client_numbers, rates.tolist(), strict=True))


def _lengths(values: Sequence[int]) -> Lengths:
    numbers = np.array(values, dtype=np.int64)
    p50, p90, p99 = np.percentile(numbers, (50, 90, 99)).tolist()
    return Lengths(int(numbers.sum()), p50, p90, p99, int(numbers.max()))


def _arrivals(times: npt.NDArray[np.float64]) -> ArrivalsShape:
    out_of_order = int((times < np.maximum.accumulate(times)).sum())
    times = np.sort(times)
    span = float(times[-1] - times[0])
    gaps = np.diff(times)
    mean = float(gaps.mean())
    busiest = int(np.histogram(times, BUCKETS)[0].max()) if span else len(times)
    return ArrivalsShape(
        span_s=span,
        rate_per_s=len(gaps) / span if span else 0.0,
        cv=float(gaps.std()) / mean if mean else 0.0,
        peak_to_mean=busiest * BUCKETS / len(times) if span else 1.0,
        out_of_order=out_of_order,
    )
