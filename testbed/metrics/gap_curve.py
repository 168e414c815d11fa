"""The gap in service between clients as it grows, and what fair policies promise about it."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations, pairwise
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from testbed.core.records import RunRecord
from testbed.metrics.service import (
    EXTENDED,
    TOTAL,
    ServiceUnit,
    backlog_of,
    clients_of,
    service_curve,
)
from testbed.metrics.timeline import Floats

PROMISED_BY: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "vtc": frozenset({"prompt_weight", "output_weight"}),
        "locality_fair": frozenset({"window", "prompt_weight", "output_weight"}),
        "dlpm": frozenset({"quantum", "extend_weight", "output_weight"}),
    }
)
"""Policies that bound the gap, and the options that their bounds depend on."""


def service_gap_curve(record: RunRecord, unit: ServiceUnit, times_s: Floats) -> Floats:
    """The largest gap so far in service per weight between two clients that wait, float64[times].

    As testbed.metrics.service_gap.max_service_gaps, over intervals that begin and end at the times
    given, which are in order; it never exceeds that. O(times * (requests + clients^2)).
    """
    curve = service_curve(record, unit, times_s)
    interval = _backlog_interval(record, times_s)
    largest = np.zeros(len(times_s))
    for f, g in combinations(range(curve.shape[1]), 2):
        waiting = (interval[:, f] >= 0) & (interval[:, g] >= 0)
        changed = np.any(np.diff(interval[:, [f, g]], axis=0) != 0, axis=1)
        starts = np.flatnonzero(np.concatenate(([True], changed)))
        difference = curve[:, f] - curve[:, g]
        for start, end in pairwise([*starts.tolist(), len(times_s)]):
            if waiting[start]:
                part = difference[start:end]
                spread = np.maximum.accumulate(part) - np.minimum.accumulate(part)
                np.maximum(largest[start:end], spread, out=largest[start:end])
    return np.maximum.accumulate(largest)


def _backlog_interval(record: RunRecord, times_s: Floats) -> npt.NDArray[np.int64]:
    """Which of its backlog intervals each client is in, int64[times, clients]; -1 for none."""
    backlog = backlog_of(record)
    number = np.full((len(times_s), len(clients_of(record).names)), -1)
    # The admission that ends a backlog is outside of it.
    first = np.searchsorted(times_s, backlog.start_s, side="left")
    last = np.searchsorted(times_s, backlog.end_s, side="left")
    for i, client in enumerate(backlog.client.tolist()):
        number[first[i] : last[i], client] = i
    return number


def promised_gap(
    scheduler: str, options: Mapping[str, Any], record: RunRecord
) -> tuple[ServiceUnit, float] | None:
    """The unit of the gap that a policy bounds, and its bound; None without a promise.

    VTC (Sheng et al., OSDI 2024): 2 max(w_p L, w_q M). DLPM (arXiv 2501.14312):
    2 (Q + w_e L + w_q M). locality_fair: 2 (1 + window) (w_p L + w_q M). L: the longest prompt. M:
    tokens of a full batch, which are at most the pool's. options: the scheduler's own, by name.
    Service is per weight, so the lightest client's weight divides. None, too, where an option that
    the bound depends on is not known.
    """
    if not PROMISED_BY.get(scheduler, frozenset()) <= options.keys():
        return None
    requests = record.requests
    longest = int(requests["prompt_tokens"].max(initial=0))
    batch = record.counters["num_pages"] * record.counters["page_size"]
    lightest = float(requests["weight"].min(initial=1.0))
    match scheduler:
        case "vtc":
            prompt, output = options["prompt_weight"], options["output_weight"]
            unit, bound = TOTAL, 2 * max(prompt * longest, output * batch)
        case "locality_fair":
            prompt, output = options["prompt_weight"], options["output_weight"]
            unit, bound = TOTAL, 2 * (1 + options["window"]) * (prompt * longest + output * batch)
        case "dlpm":
            prompt, output = options["extend_weight"], options["output_weight"]
            unit, bound = EXTENDED, 2 * (options["quantum"] + prompt * longest + output * batch)
        case _:
            return None
    # The measured gap is in the units' own prices; a policy with others promises nothing about it.
    return (unit, bound / lightest) if (prompt, output) == (unit.prompt, unit.output) else None
