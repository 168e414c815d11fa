"""fit: the statistics of a workload from which one like it can be made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from testbed.core.request import Request
from testbed.workloads.fitted_statistics import (
    CLIENTS,
    FRESH,
    GAPS,
    LENGTHS,
    MAX_QUANTILES,
    MAX_SLICES,
    QUANTILE_GAPS,
    SHARED,
    SLICE_REQUESTS,
    Histogram,
    Statistics,
    length_group,
)
from testbed.workloads.parameters import MAX_LENGTH
from testbed.workloads.prefix_hashes import PrefixHasher
from testbed.workloads.prefix_tree import PrefixTree


def fit(requests: Iterable[Request], page_size: int) -> Statistics:
    """The statistics of a workload, in arrival order.

    Memory: 8 bytes for each distinct page and some 200 a request. Raises ValueError if there are no
    requests.
    """
    hasher, tree = PrefixHasher(page_size), PrefixTree()
    clients: list[str] = []
    times: list[float] = []
    relations: dict[str, Counter[str]] = {}
    reuse: Counter[str] = Counter()
    same_client: Counter[str] = Counter()
    new_tokens: dict[str, Counter[str]] = {}
    output_tokens: dict[str, Counter[str]] = {}
    for i, request in enumerate(requests):
        path = hasher.full_pages(request.prompt)
        # As in a cache, a prompt's last token is never found.
        node, shared = tree.match(path[: (len(request.prompt) - 1) // page_size])
        relation = _relation(tree, node, shared)
        relations.setdefault(relation, Counter())[str(GAPS.of(i + 1))] += 1
        if relation != FRESH:
            other = tree.latest[node]
            reuse[f"{relation},{GAPS.of(i - other)},{SHARED.of(shared)}"] += 1
            if clients[other] == request.client:
                same_client[relation] += 1
        new = len(request.prompt) - shared * page_size
        group = length_group(relation, SHARED.of(shared))
        new_tokens.setdefault(group, Counter())[str(LENGTHS.of(min(new, MAX_LENGTH)))] += 1
        output = str(LENGTHS.of(min(request.max_new_tokens, MAX_LENGTH)))
        output_tokens.setdefault(relation, Counter())[output] += 1
        tree.add(path)
        clients.append(request.client)
        times.append(request.arrival)
    if not times:
        raise ValueError("there are no requests to fit; at least one is needed")
    gaps = np.diff(times)
    span = times[-1] - times[0]
    slices = max(1, min(MAX_SLICES, len(times) // SLICE_REQUESTS))
    return Statistics(
        requests=len(times),
        page_size=page_size,
        relations=_sorted(relations),
        reuse=dict(sorted(reuse.items())),
        new_tokens=_sorted(new_tokens),
        output_tokens=_sorted(output_tokens),
        clients=[_middle(count) for _, count in Counter(clients).most_common()],
        same_client=dict(same_client),
        span_s=span,
        arrivals=np.histogram(times, slices)[0].tolist() if span else [len(times)],
        gap_quantiles=_gap_quantiles(gaps) if span else [0.0, 0.0],
    )


def _middle(count: int) -> int:
    """The middle of the count's class: how often one client asked is nobody else's business."""
    low, above = CLIENTS.limits(CLIENTS.of(count))
    return (low + above - 1) // 2


def _gap_quantiles(gaps: npt.NDArray[np.float64]) -> list[float]:
    """So few, and rounded so, that they are not the log's own gaps."""
    places = np.linspace(0, 1, min(MAX_QUANTILES, len(gaps) // QUANTILE_GAPS + 2))
    return [float(f"{value:.2g}") for value in np.quantile(gaps, places) / gaps.mean()]


def _relation(tree: PrefixTree, node: int, shared: int) -> str:
    if shared == 0:
        return FRESH
    if tree.end[node] > shared:
        return "split"
    return "continue" if tree.is_leaf[node] else "junction"


def _sorted(histograms: dict[str, Counter[str]]) -> dict[str, Histogram]:
    return {
        name: dict(sorted(counts.items(), key=lambda item: int(item[0])))
        for name, counts in sorted(histograms.items())
    }
