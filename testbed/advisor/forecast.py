"""Expected hit rates at a cache size and concurrency: simulated now, mended, and depth first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np
import numpy.typing as npt

from testbed.advisor.requests import requests_of
from testbed.core.config import CacheConfig, SchedulerConfig
from testbed.core.policy import SchedulingPolicy
from testbed.metrics.bounds import Bound, clairvoyant_bound, sharing_bound
from testbed.metrics.gaps import Gaps
from testbed.metrics.intervals import mean_interval
from testbed.metrics.prompt_paths import PromptPaths, prompt_paths
from testbed.policies.eviction.recency import Lru
from testbed.policies.routing.load import RoundRobin
from testbed.policies.scheduling.arrival import Fcfs
from testbed.policies.scheduling.depth_first import Dfs
from testbed.sim.latency import FixedLatency
from testbed.sim.world import simulate
from testbed.workloads.formats.record import Record
from testbed.workloads.tokenize import Tokenizer

MIN_BATCHES = 10
"""Consecutive parts of the sample, whose hit rates tell how sure the whole is."""

STEP_SECONDS = 1e-4
"""Any would do: requests that wait together are admitted by order and memory, not by time."""
COLUMNS = ("cached_tokens", "prompt_tokens", "client")

Runs = Sequence[Sequence[Record]]


@dataclass(frozen=True)
class Setting:
    """Where the prompts are to be served. cache_tokens: KV cache of one replica, in tokens.

    concurrency: requests that run at a time. page_size: tokens. ValueError for less than 1, or for
    a cache smaller than a page.
    """

    cache_tokens: int
    concurrency: int = 64
    page_size: int = 16

    def __post_init__(self) -> None:
        for name in ("cache_tokens", "concurrency", "page_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: at least 1 is needed")
        if self.cache_tokens < self.page_size:
            raise ValueError(
                f"cache_tokens={self.cache_tokens}: at least page_size={self.page_size} is needed"
            )


@dataclass(frozen=True)
class Served:
    """One simulated service of the sample.

    rate: hit tokens over prompt tokens. half_width: of its 95 % confidence interval, from
    consecutive parts of the sample; NaN for too few. positions: of the requests served, in what
    was simulated; hits, tokens and clients: theirs.
    """

    rate: float
    half_width: float
    positions: npt.NDArray[np.int64]
    hits: npt.NDArray[np.int64]
    tokens: npt.NDArray[np.int64]
    clients: npt.NDArray[np.object_]


@dataclass(frozen=True)
class Forecast:
    """All of the same requests: those that fit the cache, as they are and mended.

    now, mended: first come first served. depth_first, mended_depth_first: depth first. bound,
    mended_bound: what a cache without limit finds. isolated_bound, mended_isolated_bound: if
    clients share nothing. unlimited_hits: int64[requests], what a cache without limit finds of
    each as it is. refused: requests left out because they can never fit.
    """

    now: Served
    mended: Served
    depth_first: Served
    mended_depth_first: Served
    bound: Bound
    mended_bound: Bound
    isolated_bound: Bound
    mended_isolated_bound: Bound
    unlimited_hits: npt.NDArray[np.int64]
    refused: int

    @property
    def gaps(self) -> Gaps:
        """Where the hit rate goes that mended prompts could reach."""
        return Gaps(
            max(self.mended_bound.rate, self.bound.rate),
            self.bound.rate,
            self.depth_first.rate,
            self.now.rate,
        )

    @property
    def mended_gaps(self) -> Gaps:
        """What is left of the gaps after the mends; the template's is 0 by definition."""
        return Gaps(
            self.mended_bound.rate,
            self.mended_bound.rate,
            self.mended_depth_first.rate,
            self.mended.rate,
        )


def forecast(
    runs: Runs,
    mended: Runs,
    tokenizer: Tokenizer,
    setting: Setting,
    progress: Callable[[int], None] | None = None,
) -> Forecast:
    """Simulate the sample. Every run starts with an empty cache and all its requests waiting.

    Generated tokens stay in the cache, as they do in engines. Depth-first service sees the whole
    queue of a run, so it stands for the best that scheduling can do. A request that does not fit,
    as it is or mended, is left out of everything. progress: told how many requests more have been
    served, after each run of each simulation. ValueError if no request fits.
    """

    def serve(what: Runs, policy: Callable[[], SchedulingPolicy]) -> Served:
        return _serve(what, tokenizer, setting, policy, progress)

    now, after = serve(runs, Fcfs), serve(mended, Fcfs)
    num_requests = sum(map(len, runs))
    fitting = np.intersect1d(now.positions, after.positions)
    if not len(fitting):
        raise ValueError(
            f"cache_tokens={setting.cache_tokens}: none of the {num_requests:,} requests fits; "
            "room for a prompt and its output is needed"
        )
    if len(fitting) < num_requests:
        runs, mended = _only(runs, fitting), _only(mended, fitting)
        now, after = serve(runs, Fcfs), serve(mended, Fcfs)

    def paths(what: Runs, isolated: bool = False) -> list[PromptPaths]:
        return [
            prompt_paths(
                requests_of(run, tokenizer, isolated=isolated),
                setting.page_size,
                cache_outputs=True,
            )
            for run in what
        ]

    as_is = paths(runs)
    return Forecast(
        now,
        after,
        serve(runs, Dfs),
        serve(mended, Dfs),
        _total(map(sharing_bound, as_is)),
        _total(map(sharing_bound, paths(mended))),
        _total(map(sharing_bound, paths(runs, isolated=True))),
        _total(map(sharing_bound, paths(mended, isolated=True))),
        np.concatenate([clairvoyant_bound(one, None).request_hit_tokens for one in as_is]),
        num_requests - len(fitting),
    )


def _only(runs: Runs, positions: npt.NDArray[np.int64]) -> Runs:
    """The runs with the requests at these positions of them all; no run is left empty."""
    kept = set(positions.tolist())
    numbered = count()
    chosen = [[record for record in run if next(numbered) in kept] for run in runs]
    return [run for run in chosen if run]


def _serve(
    runs: Runs,
    tokenizer: Tokenizer,
    setting: Setting,
    policy: Callable[[], SchedulingPolicy],
    progress: Callable[[int], None] | None,
) -> Served:
    parts = []
    first = 0
    for run in runs:
        record = simulate(
            requests_of(run, tokenizer),
            # Siblings that are computed in one step share, or the order of service, which brings
            # them together, would look worse than it is.
            cache=CacheConfig(
                setting.cache_tokens // setting.page_size, setting.page_size, insert_at="schedule"
            ),
            scheduler=SchedulerConfig(max_running=setting.concurrency),
            policy=policy,
            eviction=Lru,
            latency=FixedLatency(STEP_SECONDS),
            routing=RoundRobin(),
        )
        columns = record.requests
        by_id = np.argsort(columns["request"], kind="stable")
        served = by_id[columns["status"][by_id] == "finished"]
        parts.append((columns["request"][served] + first, *(columns[c][served] for c in COLUMNS)))
        first += len(run)
        if progress is not None:
            progress(len(run))
    positions, hits, tokens, clients = map(np.concatenate, zip(*parts, strict=True))
    batches = [part for part in parts if len(part[0])]
    if len(batches) < MIN_BATCHES:
        cuts = np.array_split(np.arange(len(positions)), MIN_BATCHES)
        batches = [(cut, hits[cut], tokens[cut]) for cut in cuts if len(cut)]
    rates = [float(batch[1].sum() / batch[2].sum()) for batch in batches]
    total = int(tokens.sum())
    return Served(
        float(hits.sum() / total) if total else 0.0,
        mean_interval(rates).half_width,
        positions,
        hits,
        tokens,
        clients,
    )


def _total(bounds: Iterable[Bound]) -> Bound:
    found = list(bounds)
    return Bound(sum(b.hit_tokens for b in found), sum(b.total_tokens for b in found))
