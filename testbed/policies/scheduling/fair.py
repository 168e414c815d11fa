"""Admission by fairness between clients: VTC and DLPM."""

from __future__ import annotations

from heapq import heapify, heappop, heappush, heapreplace
from math import isfinite
from typing import Literal

from testbed.core.policy import Proposals, SchedulingPolicy
from testbed.core.views import SchedulerView, SequenceView
from testbed.policies.scheduling.match_queue import Key, MatchQueue


class _Ledger:
    """One client's weighted service and queue. Token counts are integers, so that charging k
    tokens at once or one by one gives the same counter."""

    __slots__ = ("lifted", "output_tokens", "prompt_tokens", "queue", "ranked", "weight")

    def __init__(self, weight: float) -> None:
        self.weight = weight
        self.ranked = False
        self.lifted = 0.0
        self.prompt_tokens = 0
        self.output_tokens = 0
        self.queue: dict[int, SequenceView] = {}


class Vtc(SchedulingPolicy):
    """Virtual Token Counter (OSDI'24): the client with the least weighted service goes next.

    Counters rise by prompt_weight * prompt / weight at first admission and by output_weight /
    weight per output token; inside a client, arrival order. A client that returns to the queue is
    lifted to the smallest counter of the queued clients, so that idling earns no credit; if nobody
    is queued, rule `paper` lifts it to the counter of the client that left the queue last, rule
    `artifact` (the authors' code) does not lift it. Stops at the first misfit, as both do. With
    prompt_weight <= output_weight, two backlogged clients' service differs by at most
    2 * max(prompt_weight * longest prompt, output_weight * batch tokens).
    """

    def __init__(
        self,
        prompt_weight: float = 1.0,
        output_weight: float = 2.0,
        rule: Literal["paper", "artifact"] = "paper",
    ) -> None:
        if not (isfinite(prompt_weight + output_weight) and min(prompt_weight, output_weight) >= 0):
            raise ValueError(
                f"prompt_weight={prompt_weight}, output_weight={output_weight}: "
                "finite numbers of at least 0 are needed"
            )
        if rule not in ("paper", "artifact"):
            raise ValueError(f"rule={rule!r}: paper or artifact is needed")
        self._prompt_weight = prompt_weight
        self._output_weight = output_weight
        self._lifts_when_idle = rule == "paper"
        self._clients: dict[str, _Ledger] = {}
        self._left_last: str | None = None
        # One entry for each ranked client. Counters only rise, so an entry that understates its
        # client's is re-entered when it surfaces, and the first one that is exact is the minimum.
        self._heap: list[tuple[float, str]] = []

    def counter(self, client: str) -> float:
        """The client's virtual token counter."""
        ledger = self._clients[client]
        service = (
            self._prompt_weight * ledger.prompt_tokens + self._output_weight * ledger.output_tokens
        )
        return ledger.lifted + service / ledger.weight

    def candidates(self, view: SchedulerView) -> Proposals:
        """The oldest sequence of the client with the smallest (counter, name)."""
        while (client := self._least_served()) is not None:
            outcome = yield next(iter(self._clients[client].queue.values()))
            if not outcome:
                return

    def on_arrival(self, sequence: SequenceView) -> None:
        """Queue the request; lift a client that had nothing queued."""
        client = sequence.client
        ledger = self._clients.get(client)
        if ledger is None:
            ledger = self._clients[client] = _Ledger(sequence.weight)
        if not ledger.queue:
            self._lift(client, ledger)
            self._rank(client, ledger)
        ledger.queue[sequence.index] = sequence

    def on_preempt(self, sequence: SequenceView) -> None:
        """Queue it again, ahead of the client's others; it was charged already."""
        ledger = self._clients[sequence.client]
        self._rank(sequence.client, ledger)
        ledger.queue = {sequence.index: sequence, **ledger.queue}

    def on_admit(self, sequence: SequenceView, cached: int, extend: int) -> None:
        """Charge the whole prompt, cached or not, once."""
        ledger = self._clients[sequence.client]
        del ledger.queue[sequence.index]
        if not ledger.queue:
            self._left_last = sequence.client
        if not sequence.num_preemptions:
            ledger.prompt_tokens += sequence.num_prompt_tokens

    def on_tokens(self, sequence: SequenceView, count: int) -> None:
        """Charge what was produced."""
        self._clients[sequence.client].output_tokens += count

    def _least_served(self) -> str | None:
        heap = self._heap
        while heap:
            counter, client = heap[0]
            if not self._clients[client].queue:
                heappop(heap)
                self._clients[client].ranked = False
                continue
            current = self.counter(client)
            if current == counter:
                return client
            heappop(heap)
            heappush(heap, (current, client))
        return None

    def _rank(self, client: str, ledger: _Ledger) -> None:
        if not ledger.ranked:
            ledger.ranked = True
            heappush(self._heap, (self.counter(client), client))

    def _lift(self, client: str, ledger: _Ledger) -> None:
        least = self._least_served()
        if least is not None:
            floor = self.counter(least)
        elif self._lifts_when_idle and self._left_last is not None:
            floor = self.counter(self._left_last)
        else:
            return
        ledger.lifted += max(0.0, floor - self.counter(client))


class Dlpm(SchedulingPolicy):
    """Deficit longest prefix match (arXiv 2501.14312): LPM among clients with credit left.

    Each client has a deficit, 0 at first. The longest match (ties by arrival) of a client with a
    positive deficit goes next and is charged extend_weight * uncached tokens at once and
    output_weight per output token: what the cache saves is free. When no waiting client has credit,
    every known client with a deficit of 0 or less gets `quantum`. A large quantum approaches LPM
    (but a newcomer waits until the others' credit is spent), a small one VTC: two backlogged
    clients' extended service differs by at most
    2 * (quantum + extend_weight * longest prompt + output_weight * batch tokens).
    """

    def __init__(
        self, quantum: int = 32768, extend_weight: int = 1, output_weight: int = 2
    ) -> None:
        if quantum < 1 or extend_weight < 0 or output_weight < 0:
            raise ValueError(
                f"quantum={quantum}, extend_weight={extend_weight}, output_weight={output_weight}: "
                "at least 1, 0 and 0 are needed"
            )
        self.refill_rounds = 0
        self._quantum = quantum
        self._extend_weight = extend_weight
        self._output_weight = output_weight
        self._deficits: dict[str, int] = {}
        self._queues: dict[str, MatchQueue] = {}
        # During a pass: the heads of the queues of clients with credit.
        self._heads: list[tuple[Key, str]] | None = None

    def deficit(self, client: str) -> int:
        """The client's credit in weighted tokens."""
        return self._deficits[client]

    def candidates(self, view: SchedulerView) -> Proposals:
        """The longest match of a client with credit."""
        heads = self._heads = self._rank()
        try:
            while self._queues:
                if not heads:
                    self._refill()
                    heads += self._rank()
                key, client = heads[0]
                queue = self._queues.get(client)
                best = queue.first() if queue is not None else None
                if best is None or self._deficits[client] <= 0:
                    heappop(heads)
                elif best.key != key:
                    heapreplace(heads, (best.key, client))
                elif not (yield best.sequence):
                    return
        finally:
            self._heads = None

    def on_arrival(self, sequence: SequenceView) -> None:
        """Queue the request; a new client starts without credit."""
        self._deficits.setdefault(sequence.client, 0)
        self._put(sequence)

    def on_match(self, sequence: SequenceView) -> None:
        """Move to where the new match belongs."""
        self._put(sequence)

    def on_preempt(self, sequence: SequenceView) -> None:
        """Queue it again; it was charged already."""
        self._put(sequence)

    def on_admit(self, sequence: SequenceView, cached: int, extend: int) -> None:
        """Charge what must be computed, once."""
        queue = self._queues[sequence.client]
        queue.discard(sequence)
        if not len(queue):
            del self._queues[sequence.client]
        if not sequence.num_preemptions:
            self._deficits[sequence.client] -= self._extend_weight * extend

    def on_tokens(self, sequence: SequenceView, count: int) -> None:
        """Charge what was produced."""
        self._deficits[sequence.client] -= self._output_weight * count

    def _put(self, sequence: SequenceView) -> None:
        queue = self._queues.get(sequence.client)
        if queue is None:
            queue = self._queues[sequence.client] = MatchQueue()
        queue.put(sequence)
        # Admissions change matches within a pass. An entry that is not its client's head any more
        # is replaced when it surfaces.
        best = queue.first()
        if self._heads is not None and best is not None and best.sequence is sequence:
            heappush(self._heads, (best.key, sequence.client))

    def _rank(self) -> list[tuple[Key, str]]:
        heads = []
        for client, queue in self._queues.items():
            best = queue.first()
            if best is not None and self._deficits[client] > 0:
                heads.append((best.key, client))
        heapify(heads)
        return heads

    def _refill(self) -> None:
        """Refill in rounds until a waiting client has credit: all rounds at once."""
        rounds = min(self._rounds_needed(client) for client in self._queues)
        self.refill_rounds += rounds
        for client in self._deficits:
            self._deficits[client] += self._quantum * min(rounds, self._rounds_needed(client))

    def _rounds_needed(self, client: str) -> int:
        deficit = self._deficits[client]
        return 0 if deficit > 0 else -deficit // self._quantum + 1
