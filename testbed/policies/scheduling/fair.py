"""Admission by credit: clients with credit left may go, and pay for what they get."""

from __future__ import annotations

from collections import OrderedDict
from heapq import heapify, heappop, heappush, heapreplace

from testbed.core.policy import Proposals, SchedulingPolicy
from testbed.core.views import SchedulerView, SequenceView
from testbed.policies.scheduling.match_queue import Key, MatchQueue


class Dlpm(SchedulingPolicy):
    """Deficit longest prefix match (arXiv 2501.14312): LPM among clients with credit left.

    Each client has a deficit, 0 at first. The longest match (ties by arrival) of a client with a
    positive deficit goes next and is charged extend_weight * uncached tokens at once and
    output_weight per output token: what the cache saves is free. When no waiting client has credit,
    every known client with a deficit of 0 or less gets `quantum`. A large quantum approaches LPM
    (but a newcomer waits until the others' credit is spent), a small one VTC: two backlogged
    clients' extended service differs by at most
    2 * (quantum + extend_weight * longest prompt + output_weight * batch tokens). Client weights
    are ignored: all get the same quantum. Inside a client it is LPM: a stream of that client's own
    hot prompts passes its cold one for ever.
    """

    may_starve = True

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
                elif not (yield best.item):
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
        if self._heads is not None and best is not None and best.item is sequence:
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


MAX_PRICE = 1e9
"""Of a token, and of a client's weight or its inverse: credit stays far from overflow."""


class _Account:
    """What one client may still get. Token counts are integers, so that charging k tokens at once
    or one by one leaves the same credit."""

    __slots__ = ("output_tokens", "prompt_tokens", "queue", "rounds", "weight")

    def __init__(self, weight: float) -> None:
        self.weight = weight
        self.rounds = 0
        self.prompt_tokens = 0
        self.output_tokens = 0
        self.queue: OrderedDict[int, SequenceView] = OrderedDict()


class Mdrr(SchedulingPolicy):
    """Deficit round robin (the VTC artifact's `mdrr_req_queue`).

    Clients with waiting requests, or in debt, take turns. One whose turn comes with no credit left
    gets `quantum`, is served in arrival order while it has credit, and moves to the end. A prompt
    is charged prompt_weight * tokens / weight at first admission, an output token output_weight /
    weight, cached or not. At the first misfit the pass ends; the client keeps its turn, but is
    passed over once if its running requests put it in debt meanwhile. quantum 0 is a twentieth of
    the pool, as in the artifact, which admits only every 10 decode steps where this does at every
    step. Coarser than VTC: a turn is worth the quantum and one request. Prices are at most 1e9; a
    request whose weight is not from 1e-9 to 1e9 raises ValueError.
    """

    def __init__(
        self, quantum: int = 0, prompt_weight: float = 1.0, output_weight: float = 2.0
    ) -> None:
        if quantum < 0:
            raise ValueError(f"quantum={quantum}: at least 1, or 0 for pool / 20, is needed")
        if not (0 <= prompt_weight <= MAX_PRICE and 0 <= output_weight <= MAX_PRICE):
            raise ValueError(
                f"prompt_weight={prompt_weight}, output_weight={output_weight}: "
                f"numbers from 0 to {MAX_PRICE:g} are needed"
            )
        self._quantum: float = quantum
        self._prompt_weight = prompt_weight
        self._output_weight = output_weight
        self._accounts: dict[str, _Account] = {}
        self._turns: OrderedDict[str, None] = OrderedDict()
        self._stopped_at: str | None = None

    def on_start(self, view: SchedulerView) -> None:
        """Measure the pool."""
        self._quantum = self._quantum or view.cache.num_free_pages * view.cache.page_size / 20

    def deficit(self, client: str) -> float:
        """The client's credit in weighted tokens; negative if it is in debt."""
        return self._credit(self._accounts[client])

    def candidates(self, view: SchedulerView) -> Proposals:
        """Whoever's turn it is, while its credit lasts."""
        num_resting = 0
        while self._turns:
            if num_resting == len(self._turns):
                self._skip_rounds()
                num_resting = 0
            client, _ = self._turns.popitem(last=False)
            account = self._accounts[client]
            if client == self._stopped_at and self.deficit(client) < 0:
                self._turns[client] = None
                self._stopped_at = None
                num_resting = 0
                continue
            if self.deficit(client) <= 0:
                account.rounds += 1
            num_resting = num_resting + 1 if self._rests(account) else 0
            # Also where the pass is ended from outside, as no slot is left.
            stopped = True
            try:
                while account.queue and self.deficit(client) > 0:
                    if not (yield next(iter(account.queue.values()))):
                        return
                stopped = False
            finally:
                if account.queue or self.deficit(client) < 0:
                    self._turns[client] = None
                    if stopped:
                        self._turns.move_to_end(client, last=False)
                        self._stopped_at = client

    def on_arrival(self, sequence: SequenceView) -> None:
        """Queue the request; its client takes turns from now on."""
        client = sequence.client
        account = self._accounts.get(client)
        if account is None:
            if not 1 / MAX_PRICE <= sequence.weight <= MAX_PRICE:
                raise ValueError(
                    f"request {sequence.id}: weight is {sequence.weight}; "
                    f"mdrr needs {1 / MAX_PRICE:g} to {MAX_PRICE:g}"
                )
            account = self._accounts[client] = _Account(sequence.weight)
        account.queue[sequence.index] = sequence
        self._turns.setdefault(client, None)

    def on_preempt(self, sequence: SequenceView) -> None:
        """Queue it again, ahead of the client's others; it was charged already."""
        self.on_arrival(sequence)
        self._accounts[sequence.client].queue.move_to_end(sequence.index, last=False)

    def on_admit(self, sequence: SequenceView, cached: int, extend: int) -> None:
        """Charge the whole prompt, cached or not, once."""
        account = self._accounts[sequence.client]
        del account.queue[sequence.index]
        if not sequence.num_preemptions:
            account.prompt_tokens += sequence.num_prompt_tokens

    def on_tokens(self, sequence: SequenceView, count: int) -> None:
        """Charge what was produced."""
        self._accounts[sequence.client].output_tokens += count

    def _credit(self, account: _Account, rounds: int = 0) -> float:
        """Its deficit after so many more rounds."""
        service = (
            self._prompt_weight * account.prompt_tokens
            + self._output_weight * account.output_tokens
        )
        return (account.rounds + rounds) * self._quantum - service / account.weight

    def _rests(self, account: _Account, rounds: int = 0) -> bool:
        """Whether, after so many more rounds, its turn would pass with nothing but a quantum."""
        credit = self._credit(account, rounds)
        return credit <= 0 if account.queue else credit < 0

    def _skip_rounds(self) -> None:
        """Go through all the rounds at once in which every client would rest."""
        accounts = [self._accounts[client] for client in self._turns]
        quiet, loud = 0, 1
        while all(self._rests(account, loud) for account in accounts):
            quiet, loud = loud, 2 * loud
        while loud - quiet > 1:
            middle = (quiet + loud) // 2
            if all(self._rests(account, middle) for account in accounts):
                quiet = middle
            else:
                loud = middle
        for account in accounts:
            account.rounds += quiet
