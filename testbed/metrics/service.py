"""Service: what each client has been given, charged exactly when it was given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from testbed.core.records import RunRecord
from testbed.metrics.timeline import Floats, Ints, output_tokens


@dataclass(frozen=True)
class ServiceUnit:
    """The price of a prompt token, charged at first admission, and of an output token, charged when
    it is produced. charge_cached: whether prompt tokens found in the cache cost anything."""

    prompt: float = 1.0
    output: float = 2.0
    charge_cached: bool = True


TOTAL = ServiceUnit()
"""Token service, as VTC counts it."""
EXTENDED = ServiceUnit(charge_cached=False)
"""Only what had to be computed, as DLPM counts it."""


class Clients(NamedTuple):
    """names: sorted. of_row: int64[requests], each request's place in names."""

    names: list[str]
    of_row: Ints


class Backlog(NamedTuple):
    """Longest intervals in which a client had requests that had arrived but not been admitted.

    client: int64[intervals], in order of client, then of time. start_s, end_s: seconds.
    """

    client: Ints
    start_s: Floats
    end_s: Floats


def clients_of(record: RunRecord) -> Clients:
    """The run's clients."""
    names, of_row = np.unique(record.requests["client"], return_inverse=True)
    return Clients(names.tolist(), of_row)


def prompt_charges(record: RunRecord, unit: ServiceUnit) -> Floats:
    """What each request's first admission costs per weight, float64[requests]; 0 if never."""
    requests = record.requests
    tokens = requests["prompt_tokens"]
    if not unit.charge_cached:
        tokens = tokens - requests["cached_tokens"]
    return unit.prompt * tokens * (requests["admitted_step"] >= 0) / requests["weight"]


def token_charges(record: RunRecord, unit: ServiceUnit) -> Floats:
    """What each output token of a request costs per weight, float64[requests]."""
    return unit.output / record.requests["weight"]


def service_curve(record: RunRecord, unit: ServiceUnit, times_s: Floats) -> Floats:
    """Service per weight given up to and including each time, float64[times, clients].

    Clients are in order of name. O(times * requests).
    """
    clients = clients_of(record)
    charges, per_token = prompt_charges(record, unit), token_charges(record, unit)
    admitted_s = record.requests["admitted_s"]
    replicas = list(output_tokens(record))
    curve = np.zeros((len(times_s), len(clients.names)))
    for place, time_s in enumerate(times_s):
        given = np.where(admitted_s <= time_s, charges, 0.0)
        for tokens in replicas:
            decoded = np.searchsorted(tokens.decode_s, time_s, side="right")
            produced = np.clip(decoded, tokens.first_decode, tokens.last_decode)
            produced = produced - tokens.first_decode + (tokens.first_s <= time_s)
            np.add.at(given, tokens.row, produced * per_token[tokens.row])
        curve[place] = np.bincount(clients.of_row, given, minlength=len(clients.names))
    return curve


def backlog_of(record: RunRecord) -> Backlog:
    """When each client was backlogged; one that arrives as the last one leaves prolongs it."""
    requests = record.requests
    admitted = np.flatnonzero(requests["admitted_step"] >= 0)
    client = clients_of(record).of_row[admitted]
    arrival, left = requests["arrival_s"][admitted], requests["admitted_s"][admitted]
    order = np.lexsort((arrival, client))
    client, arrival, left = client[order], arrival[order], left[order]
    starts: list[int] = []
    ends_s: list[float] = []
    previous = -1
    rows = zip(client.tolist(), arrival.tolist(), left.tolist(), strict=True)
    for i, (of_client, arrival_s, left_s) in enumerate(rows):
        if of_client == previous and arrival_s <= ends_s[-1]:
            ends_s[-1] = max(ends_s[-1], left_s)
        else:
            starts.append(i)
            ends_s.append(left_s)
            previous = of_client
    first = np.array(starts, dtype=np.int64)
    return Backlog(client[first], arrival[first], np.array(ends_s))
