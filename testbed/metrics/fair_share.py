"""What each client was given, beside what a fair server would have given it."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from testbed.core.records import RunRecord
from testbed.metrics.service import ServiceUnit, clients_of, service_curve
from testbed.metrics.timeline import Floats


def max_min_share(demands: npt.ArrayLike, capacity: float) -> Floats:
    """The max-min fair (water-filling) allocation of `capacity`, float64[clients].

    Nobody gets more than it asks for, and what one leaves is shared equally by the others.
    """
    wanted = np.asarray(demands, dtype=np.float64)
    order = np.argsort(wanted, kind="stable")
    shares = np.zeros(len(wanted))
    left = capacity
    for place, client in enumerate(order):
        share = min(float(wanted[client]), left / (len(wanted) - place))
        shares[client] = share
        left -= share
    return shares


class ServiceDifference(NamedTuple):
    """Statistics of VTC's service difference over windows; NaN without a window."""

    largest: float
    mean: float
    variance: float


class ServiceWindows(NamedTuple):
    """Service per weight in consecutive windows, float64[windows, clients] each.

    given: what was served. asked: the service of the requests that arrived in the window. owed: of
    those that had arrived by its end, what had not been given when it began.
    """

    given: Floats
    asked: Floats
    owed: Floats


def service_windows(record: RunRecord, unit: ServiceUnit, window_s: float) -> ServiceWindows:
    """Cut the time from the first to the last arrival into windows of `window_s` seconds.

    What is left over after the last whole window is left out, as is the time after the last
    arrival, when a server that only empties its queue can no longer be unfair.
    """
    requests = record.requests
    clients = clients_of(record)
    arrival_s = requests["arrival_s"]
    num_windows = 0
    if len(arrival_s) and window_s > 0:
        num_windows = int((arrival_s.max() - arrival_s.min()) / window_s + 1e-9)
    if not num_windows:
        nothing = np.zeros((0, len(clients.names)))
        return ServiceWindows(nothing, nothing, nothing)
    edges: Floats = arrival_s.min() + window_s * np.arange(num_windows + 1, dtype=np.float64)
    prompt = requests["prompt_tokens"].astype(np.float64)
    if not unit.charge_cached:
        prompt = prompt - requests["cached_tokens"]
    worth = unit.prompt * prompt + unit.output * requests["output_tokens"]
    worth = worth * (requests["admitted_step"] >= 0) / requests["weight"]
    arrived = np.zeros((num_windows + 1, len(clients.names)))
    for place, edge in enumerate(edges):
        # The last edge is the last arrival, which belongs to its window.
        early = arrival_s <= edge if place == num_windows else arrival_s < edge
        arrived[place] = np.bincount(
            clients.of_row[early], worth[early], minlength=len(clients.names)
        )
    served = service_curve(record, unit, edges)
    return ServiceWindows(
        np.diff(served, axis=0), np.diff(arrived, axis=0), arrived[1:] - served[:-1]
    )


def service_difference(windows: ServiceWindows) -> ServiceDifference:
    """How far clients fall behind the best served one, window by window.

    A window's difference is the sum over clients of min(largest service - its service,
    |what it asked for in the window - its service|) (the VTC artifact's metric; there service is
    smeared over a request's life, here it is charged when it is given).
    """
    given, asked, _ = windows
    if not len(given):
        return ServiceDifference(math.nan, math.nan, math.nan)
    behind = given.max(axis=1, keepdims=True) - given
    difference = np.minimum(behind, np.abs(asked - given)).sum(axis=1)
    return ServiceDifference(
        float(difference.max()), float(difference.mean()), float(difference.var())
    )


def fair_share_distance(windows: ServiceWindows) -> float:
    """Share of the service that a max-min fair server would have given to somebody else.

    0 is max-min fair; NaN without a window. In each window the same total is dealt out by
    max_min_share of what each client was owed.
    """
    given, _, owed = windows
    total = given.sum()
    if not total:
        return math.nan
    fair = np.array(
        [max_min_share(np.maximum(o, g), g.sum()) for o, g in zip(owed, given, strict=True)]
    )
    return float(np.abs(given - fair).sum() / (2 * total))
