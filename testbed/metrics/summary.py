"""One run in numbers: hit rates, latencies, throughput, memory and fairness."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from testbed.core.records import RunRecord
from testbed.metrics.bounds import Bound, RunBounds
from testbed.metrics.fair_share import (
    fair_share_distance,
    service_difference,
    service_windows,
)
from testbed.metrics.fairness import mean_jain_index
from testbed.metrics.service import EXTENDED, TOTAL
from testbed.metrics.service_gap import max_service_gaps
from testbed.metrics.timeline import Floats, output_tokens

LATENCIES: dict[str, str] = {
    "ttft": "time to first token: first_token_s - arrival_s",
    "tpot": "time per output token: (finish_s - first_token_s) / (output_tokens - 1)",
    "itl": "inter-token latency: every gap between two consecutive tokens of a request",
    "e2e": "end-to-end latency: finish_s - arrival_s",
}
MAX_GAP_CLIENTS = 2000
"""With more clients the pairwise gap is left out: it takes memory for every pair."""
STATISTICS: dict[str, float | None] = {"mean": None, "p50": 0.5, "p90": 0.9, "p99": 0.99}

MAX_JAIN_WINDOWS = 2000
"""Bounds the work for traffic that lasts for days."""

SUMMARY_COLUMNS: dict[str, str] = {
    "requests": "requests that finished or were refused",
    "finished": "requests that produced all their tokens",
    "refused": "requests that were turned away",
    "skipped_lines": "bad lines of the workload's file that were left out",
    "preemptions": "times that a running sequence lost its memory",
    "makespan_s": "first arrival to last finish",
    "prompt_tokens": "prompt tokens of admitted requests",
    "output_tokens": "tokens generated",
    "cached_tokens": "prompt tokens found in the cache at first admission",
    "hit_rate": "cached_tokens / prompt_tokens: THE hit rate",
    "hit_rate_with_rehits": (
        "(cached + rehit) / (prompt + rehit + recomputed): re-admissions after preemption count too"
    ),
    "hit_rate_with_chunk_rereads": (
        "(cached + chunk rereads) / (prompt + chunk rereads): what systems print that take the "
        "next chunk of a prefill for reuse"
    ),
    "router_match_rate": "what the chosen replica held when a request was routed / prompt_tokens",
    "sharing_bound": "hit rate that no order and no capacity can exceed; NaN if not computed",
    "best_order_bound": (
        "the same with the prompts' segments in their best order; NaN for prompts without segments"
    ),
    "clairvoyant_bound": "hit rate of clairvoyant eviction in the served order; likewise",
    **{
        f"{name}_{statistic}_s": f"{statistic} of {meaning}; NaN without a sample"
        for name, meaning in LATENCIES.items()
        for statistic in STATISTICS
    },
    "requests_per_s": "finished / makespan_s",
    "output_tokens_per_s": "output_tokens / makespan_s",
    "total_tokens_per_s": "(prompt_tokens + output_tokens) / makespan_s",
    "evicted_tokens": "cached tokens evicted, in whole pages",
    "rehit_tokens": "tokens found in the cache at re-admissions",
    "recomputed_tokens": "tokens computed again because a preemption dropped them",
    "chunk_reread_tokens": "tokens that continuing chunks found computed by earlier ones",
    "pool_running_mean": "fraction of the pool that running sequences use, mean over step time",
    "pool_running_max": "its largest value",
    "pool_cached_mean": "fraction of the pool in the cache, locked or not, mean over step time",
    "pool_cached_max": "its largest value",
    "max_service_gap": (
        "largest gap in service per weight between two clients while both have requests waiting; "
        f"1 a prompt token, 2 an output token; NaN with more than {MAX_GAP_CLIENTS} clients"
    ),
    "max_extended_service_gap": "the same, with cached prompt tokens free of charge",
    "jain_index": (
        "Jain index of service per weight of the clients that wait through a whole window, mean "
        "over windows of a tenth of the makespan, 60 s at most; NaN if there is no such window"
    ),
    "service_difference_max": (
        "service per weight by which clients fall behind the best served one without having asked "
        "for less (VTC's service difference), largest over such windows between first and last "
        "arrival"
    ),
    "service_difference_mean": "the same, mean over windows",
    "fair_share_distance": (
        "share of the service in those windows that a max-min fair server would have given to "
        "another client; 0 is fair"
    ),
}


def summarize(
    record: RunRecord, bounds: RunBounds | None = None, best_order: Bound | None = None
) -> dict[str, float]:
    """One value for each of SUMMARY_COLUMNS, in that order; NaN where there is nothing to measure.

    bounds: from testbed.metrics.bounds.run_bounds. best_order: from
    testbed.metrics.best_bound.best_order_bound. O(steps + tokens' spans).
    """
    requests = record.requests
    makespan_s = _makespan_s(requests)
    admitted = requests["admitted_step"] >= 0
    totals = {
        name: int(requests[name].sum())
        for name in ("output_tokens", "preemptions", "rehit_tokens", "recomputed_tokens")
    }
    prompt = int(requests["prompt_tokens"][admitted].sum())
    cached = int(requests["cached_tokens"].sum())
    rehit, recomputed = totals["rehit_tokens"], totals["recomputed_tokens"]
    reread = int(requests["chunk_reread_tokens"].sum())
    finished = int((requests["status"] == "finished").sum())
    page_size = record.counters["page_size"]
    gaps = (
        max_service_gaps(record, (TOTAL, EXTENDED))
        if len(np.unique(requests["client"])) <= MAX_GAP_CLIENTS
        else [math.nan, math.nan]
    )
    window_s = max(min(60.0, makespan_s / 10), makespan_s / MAX_JAIN_WINDOWS)
    windows = service_windows(record, TOTAL, window_s)
    difference = service_difference(windows)
    values: dict[str, float] = {
        "requests": len(requests["request"]),
        "finished": finished,
        "refused": int((requests["status"] == "refused").sum()),
        "skipped_lines": record.counters.get("skipped_lines", 0),
        "makespan_s": makespan_s,
        "prompt_tokens": prompt,
        "cached_tokens": cached,
        "chunk_reread_tokens": reread,
        "hit_rate": _ratio(cached, prompt),
        "hit_rate_with_rehits": _ratio(cached + rehit, prompt + rehit + recomputed),
        "hit_rate_with_chunk_rereads": _ratio(cached + reread, prompt + reread),
        "router_match_rate": _ratio(int(requests["routed_match_tokens"][admitted].sum()), prompt),
        "sharing_bound": bounds.sharing.rate if bounds else math.nan,
        "best_order_bound": best_order.rate if best_order else math.nan,
        "clairvoyant_bound": bounds.clairvoyant.rate if bounds else math.nan,
        "requests_per_s": _ratio(finished, makespan_s),
        "output_tokens_per_s": _ratio(totals["output_tokens"], makespan_s),
        "total_tokens_per_s": _ratio(prompt + totals["output_tokens"], makespan_s),
        "evicted_tokens": int(record.steps["evicted_pages"].sum()) * page_size,
        "max_service_gap": gaps[0],
        "max_extended_service_gap": gaps[1],
        "jain_index": mean_jain_index(record, TOTAL, window_s),
        "service_difference_max": difference.largest,
        "service_difference_mean": difference.mean,
        "fair_share_distance": fair_share_distance(windows),
        **totals,
        **_latencies(record),
        **_occupancy(record),
    }
    return {name: values[name] for name in SUMMARY_COLUMNS}


def goodput(record: RunRecord, ttft_s: float, tpot_s: float) -> float:
    """Finished requests per second of makespan that met both limits (seconds, inclusive)."""
    latencies = _request_latencies(record.requests)
    # A request of one token has no TPOT to miss: NaN compares False.
    met = (latencies["ttft"] <= ttft_s) & ~(latencies["tpot"] > tpot_s)
    return _ratio(int(met.sum()), _makespan_s(record.requests))


def weighted_quantile(values: Floats, weights: npt.NDArray[np.int64], q: float) -> float:
    """np.quantile(np.repeat(values, weights), q) without the repetition; NaN if it is empty."""
    order = np.argsort(values, kind="stable")
    cumulative = np.cumsum(weights[order])
    total = int(cumulative[-1]) if len(cumulative) else 0
    if total == 0:
        return math.nan
    position = q * (total - 1)
    below = math.floor(position)
    low, high = np.searchsorted(cumulative, [below, min(below + 1, total - 1)], side="right")
    low_value, high_value = float(values[order[low]]), float(values[order[high]])
    return low_value + (high_value - low_value) * (position - below)


def _request_latencies(requests: dict[str, npt.NDArray[Any]]) -> dict[str, Floats]:
    """ttft, tpot and e2e of finished requests, float64[finished]; tpot is NaN after one token."""
    finished = requests["status"] == "finished"
    arrival, first_token, finish = (
        requests[name][finished] for name in ("arrival_s", "first_token_s", "finish_s")
    )
    later_tokens = requests["output_tokens"][finished] - 1
    tpot = np.full(len(arrival), math.nan)
    np.divide(finish - first_token, later_tokens, out=tpot, where=later_tokens > 0)
    return {"ttft": first_token - arrival, "tpot": tpot, "e2e": finish - arrival}


def inter_token_latencies(record: RunRecord) -> tuple[Floats, npt.NDArray[np.int64]]:
    """Every gap between consecutive tokens of a request, as (seconds, how often), both [gaps].

    Between two decode steps all running sequences share one gap, so it is stored once.
    """
    values: list[Floats] = []
    weights: list[npt.NDArray[np.int64]] = []
    for tokens in output_tokens(record):
        longer = tokens.last_decode > tokens.first_decode
        first, last = tokens.first_decode[longer], tokens.last_decode[longer]
        shared = np.zeros(len(tokens.decode_s) + 1, dtype=np.int64)
        np.add.at(shared, first, 1)
        np.add.at(shared, last - 1, -1)
        values.append(np.diff(tokens.decode_s))
        weights.append(np.cumsum(shared)[: max(len(tokens.decode_s) - 1, 0)])
        resumed = tokens.row[1:] == tokens.row[:-1]
        single = [
            tokens.decode_s[first] - tokens.first_s[longer],
            (tokens.first_s[1:] - tokens.last_s[:-1])[resumed],
        ]
        values += single
        weights += [np.ones(len(gaps), dtype=np.int64) for gaps in single]
    if not values:
        return np.empty(0), np.empty(0, dtype=np.int64)
    return np.concatenate(values), np.concatenate(weights)


def _latencies(record: RunRecord) -> dict[str, float]:
    samples = {
        name: (values[~np.isnan(values)], np.ones(np.count_nonzero(~np.isnan(values)), np.int64))
        for name, values in _request_latencies(record.requests).items()
    }
    samples["itl"] = inter_token_latencies(record)
    return {
        f"{name}_{statistic}_s": (
            _ratio(float(values @ weights), int(weights.sum()))
            if q is None
            else weighted_quantile(values, weights, q)
        )
        for name, (values, weights) in samples.items()
        for statistic, q in STATISTICS.items()
    }


def _occupancy(record: RunRecord) -> dict[str, float]:
    """Steps weigh by their duration: an idle pool between steps is not counted."""
    steps = record.steps
    duration_s = steps["end_s"] - steps["start_s"]
    num_pages = record.counters["num_pages"]
    pages = {
        "running": num_pages - steps["free_pages"] - steps["evictable_pages"],
        "cached": steps["evictable_pages"] + steps["locked_pages"],
    }
    values: dict[str, float] = {}
    for name, used in pages.items():
        mean = _ratio(float(used @ duration_s), float(duration_s.sum()))
        values[f"pool_{name}_mean"] = mean / num_pages
        values[f"pool_{name}_max"] = float(used.max()) / num_pages if len(used) else math.nan
    return values


def _makespan_s(requests: dict[str, npt.NDArray[Any]]) -> float:
    finish = requests["finish_s"][requests["status"] == "finished"]
    return float(finish.max() - requests["arrival_s"].min()) if len(finish) else 0.0


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else math.nan
