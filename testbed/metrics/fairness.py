"""How evenly clients that wait at the same time are served: Jain's index."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from testbed.core.records import RunRecord
from testbed.metrics.service import ServiceUnit, backlog_of, clients_of, service_curve
from testbed.metrics.timeline import Floats


def jain_index(values: npt.ArrayLike) -> float:
    """(sum x)^2 / (n sum x^2): 1 if all are equal (or zero), 1/n if one has everything."""
    x = np.asarray(values, dtype=np.float64)
    squares = float(x @ x)
    return float(x.sum()) ** 2 / (len(x) * squares) if squares else 1.0


def mean_jain_index(record: RunRecord, unit: ServiceUnit, window_s: float) -> float:
    """Mean over windows of the Jain index of service per weight in the window.

    Windows of window_s seconds follow each other from the first arrival. One counts if at least two
    clients are backlogged through all of it, and only those clients count: a client that asks for
    little is not treated unfairly. NaN if no window counts. O(windows * requests).
    """
    backlog = backlog_of(record)
    num_clients = len(clients_of(record).names)
    if num_clients < 2 or not len(backlog.client) or not window_s > 0:
        return math.nan
    start_s = float(record.requests["arrival_s"].min())
    # A sliver is added so that a window of span / n gives n windows in spite of rounding.
    num_windows = int((float(backlog.end_s.max()) - start_s) / window_s + 1e-9)
    edges: Floats = start_s + window_s * np.arange(num_windows + 1, dtype=np.float64)
    covered = np.zeros((num_windows + 1, num_clients), dtype=np.int64)
    first = np.searchsorted(edges, backlog.start_s, side="left")
    last = np.searchsorted(edges, backlog.end_s, side="right") - 1
    some = last > first
    np.add.at(covered, (first[some], backlog.client[some]), 1)
    np.add.at(covered, (last[some], backlog.client[some]), -1)
    backlogged = np.cumsum(covered, axis=0)[:-1] > 0
    counts = np.flatnonzero(backlogged.sum(axis=1) >= 2)
    if not len(counts):
        return math.nan
    given = np.diff(service_curve(record, unit, edges), axis=0)
    return float(np.mean([jain_index(given[w][backlogged[w]]) for w in counts]))
