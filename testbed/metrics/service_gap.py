"""The largest gap in service between two clients while both are backlogged."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from testbed.core.records import RunRecord
from testbed.metrics.service import (
    ServiceUnit,
    backlog_of,
    clients_of,
    prompt_charges,
    token_charges,
)
from testbed.metrics.timeline import Floats, output_tokens

# What happens at one instant, in this order: a step ends, requests arrive, a step admits.
_TOKENS, _START, _END, _ADMIT = range(4)


class _Event(NamedTuple):
    """given, per_decode: by how much service, and service per decode step of the replica, change;
    float64[units]. Both are per weight."""

    time_s: float
    kind: int
    client: int
    replica: int
    given: Floats
    per_decode: Floats


def max_service_gaps(record: RunRecord, units: Sequence[ServiceUnit]) -> list[float]:
    """For each unit the largest |W_f(t1, t2) - W_g(t1, t2)| over clients f, g and t1 < t2.

    W is service per weight; f and g are backlogged from t1 to t2. All admissions of one step count
    at once, and so do all its tokens; the admission that ends a client's backlog is outside of it.
    0 with fewer than two clients. Exact on one replica: between two events of f or g (an admission,
    a span of tokens that begins or ends) their difference is linear in decode steps, so only events
    are looked at. With several replicas, what lies between two events is not seen.

    O((requests + spans) * clients) time, O(clients^2) memory.
    """
    clients = clients_of(record)
    if len(clients.names) < 2:
        return [0.0] * len(units)
    decode_ends, events = _events(record, units, clients.of_row)
    pairs = _Pairs(len(units), len(clients.names), len(decode_ends))
    times_s = [event.time_s for event in events]
    before, after = (
        np.stack([np.searchsorted(ends, times_s, side=side) for ends in decode_ends], axis=1)
        for side in ("left", "right")
    )
    place = 0
    for (_, kind), group in groupby(events, key=itemgetter(0, 1)):
        together = list(group)
        if kind == _START:
            pairs.start([event.client for event in together], after[place])
        elif kind == _END:
            pairs.end([event.client for event in together], after[place])
        else:
            pairs.serve(together, before[place] if kind == _TOKENS else after[place], after[place])
        place += len(together)
    return pairs.largest.tolist()


def _events(
    record: RunRecord, units: Sequence[ServiceUnit], client_of_row: npt.NDArray[np.int64]
) -> tuple[list[Floats], list[_Event]]:
    """Ends of the decode steps of each replica (of one, if none decodes), and events in order."""
    nothing = np.zeros(len(units))
    client = client_of_row.tolist()
    charges = np.stack([prompt_charges(record, unit) for unit in units], axis=1)
    per_token = np.stack([token_charges(record, unit) for unit in units], axis=1)
    requests = record.requests
    events = [
        _Event(float(requests["admitted_s"][row]), _ADMIT, client[row], 0, charges[row], nothing)
        for row in np.flatnonzero(requests["admitted_step"] >= 0).tolist()
    ]
    backlog = backlog_of(record)
    for who, start_s, end_s in zip(*(column.tolist() for column in backlog), strict=True):
        events.append(_Event(start_s, _START, who, 0, nothing, nothing))
        events.append(_Event(end_s, _END, who, 0, nothing, nothing))
    decode_ends: list[Floats] = []
    for replica, tokens in enumerate(output_tokens(record)):
        decode_ends.append(tokens.decode_s)
        columns = (
            tokens.row,
            tokens.first_s,
            tokens.last_s,
            tokens.first_decode,
            tokens.last_decode,
        )
        spans = zip(*(column.tolist() for column in columns), strict=True)
        for row, first_s, last_s, first, last in spans:
            # While it runs, the span has given 1 + (decode steps so far - first) tokens.
            each, who = per_token[row], client[row]
            events.append(_Event(first_s, _TOKENS, who, replica, each * (1 - first), each))
            events.append(_Event(last_s, _TOKENS, who, replica, each * last, -each))
    return decode_ends or [np.empty(0)], sorted(events, key=itemgetter(0, 1))


class _Pairs:
    """For every pair of backlogged clients, the range of W_f - W_g since both are.

    W(t) = given + per_decode @ decode steps of each replica up to t. Row f of high and low is kept
    up to date at the events of f only, row g at those of g; together they hold the pair's range.
    """

    def __init__(self, num_units: int, num_clients: int, num_replicas: int) -> None:
        self.largest = np.zeros(num_units)
        self._given = np.zeros((num_units, num_clients))
        self._per_decode = np.zeros((num_units, num_replicas, num_clients))
        self._high = np.zeros((num_units, num_clients, num_clients))
        self._low = np.zeros_like(self._high)
        self._backlogged = np.zeros(num_clients, dtype=bool)

    def start(self, clients: list[int], decoded: npt.NDArray[np.int64]) -> None:
        """The clients become backlogged."""
        service = self._service(decoded)
        for client in clients:
            difference = service[:, client, None] - service
            self._high[:, client] = self._low[:, client] = difference
            self._high[:, :, client] = self._low[:, :, client] = -difference
            self._backlogged[client] = True

    def end(self, clients: list[int], decoded: npt.NDArray[np.int64]) -> None:
        """The clients are no longer backlogged: take stock of their pairs."""
        self._look(clients, decoded)
        for client in clients:
            high = np.maximum(self._high[:, client], -self._low[:, :, client])
            low = np.minimum(self._low[:, client], -self._high[:, :, client])
            gaps = (high - low)[:, self._backlogged]
            self.largest = np.maximum(self.largest, gaps.max(axis=1))
            self._backlogged[client] = False

    def serve(
        self,
        events: list[_Event],
        before: npt.NDArray[np.int64],
        after: npt.NDArray[np.int64],
    ) -> None:
        """Charge the clients; before, after: decode steps of each replica, int64[replicas]."""
        watched = [c for c in {e.client: None for e in events} if self._backlogged[c]]
        self._look(watched, before)
        for event in events:
            self._given[:, event.client] += event.given
            self._per_decode[:, event.replica, event.client] += event.per_decode
        self._look(watched, after)

    def _look(self, clients: list[int], decoded: npt.NDArray[np.int64]) -> None:
        if not clients:
            return
        service = self._service(decoded)
        for client in clients:
            difference = service[:, client, None] - service
            np.maximum(self._high[:, client], difference, out=self._high[:, client])
            np.minimum(self._low[:, client], difference, out=self._low[:, client])

    def _service(self, decoded: npt.NDArray[np.int64]) -> Floats:
        return self._given + decoded @ self._per_decode
