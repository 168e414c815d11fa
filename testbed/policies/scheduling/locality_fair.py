"""Admission by service and cached prefix: fair between clients, local inside them."""

from __future__ import annotations

from heapq import heappop, heappush, heapreplace
from math import inf, isfinite

from testbed.core.policy import Proposals, SchedulingPolicy
from testbed.core.views import SchedulerView, SequenceView
from testbed.policies.scheduling.match_queue import Key, MatchQueue


class _Account:
    """One client's weighted service and queue; token counts are integers, as Vtc's."""

    __slots__ = ("lifted", "output_tokens", "prompt_tokens", "queue", "weight")

    def __init__(self, weight: float) -> None:
        self.weight = weight
        self.lifted = 0.0
        self.prompt_tokens = 0
        self.output_tokens = 0
        self.queue = MatchQueue()


class LocalityFair(SchedulingPolicy):
    """VTC's order between clients, longest match first inside one, and rides on cached prefixes.

    Service is counted as VTC does: prompt_weight * prompt (cached or not) / weight at first
    admission, output_weight / weight per output token; a client that returns to the queue is
    lifted to the smallest counter in the queue, or to that of the client that left it last. The
    floor is the smallest counter of a queued client, and that client is served, its longest match
    first (ties by arrival), where VTC takes its oldest request: which of a client's own requests
    goes first is no matter of fairness between clients, and is most of what LPM gains.

    Other clients may ride: if the longest match of one is more than half of its request and the
    client is at most R = window * U above the floor (with 0: level with it), the longest such match
    goes instead. It takes what is cached while it is there, and its client pays in full.

    U = (prompt_weight * longest prompt so far + output_weight * pool tokens) / smallest weight so
    far. Two clients that are backlogged together differ in total service per weight by at most
    2 * (R + U): one is admitted within R of the floor only, and then goes up by at most U through
    what it has in the batch. (VTC's own bound has the larger of U's two terms. It counts prompts as
    memory, and shared ones are not.)

    Where it loses: with a cache that cannot hold one prefix for each client, turns reload them; a
    client's cold requests wait while its warm ones are served, without a limit if those never end;
    and a client that asks little is served at once, before the requests that would share with it
    have arrived, so that on a trace of conversations LPM, which lets everybody wait, finds more.
    This policy is the testbed's own.
    """

    may_starve = True

    def __init__(
        self, window: float = 0.0, prompt_weight: float = 1.0, output_weight: float = 2.0
    ) -> None:
        for name, value in (
            ("window", window),
            ("prompt_weight", prompt_weight),
            ("output_weight", output_weight),
        ):
            if not (isfinite(value) and value >= 0):
                raise ValueError(f"{name}={value}: a finite number of at least 0 is needed")
        self._window = window
        self._prompt_weight = prompt_weight
        self._output_weight = output_weight
        self._accounts: dict[str, _Account] = {}
        self._left_last: str | None = None
        self._longest_prompt = 0
        self._pool_tokens = 0
        self._smallest_weight = inf
        # Queued clients by counter. Counters only rise, so the first entry that is exact is the
        # least one; an entry that understates its client's is entered anew when it surfaces.
        self._by_counter: list[tuple[float, str]] = []
        self._ranked: dict[str, None] = {}
        # During a pass: the longest match of each client, if it may ride; some are stale.
        self._riders: list[tuple[Key, str]] | None = None

    @property
    def unit(self) -> float:
        """U: how far one turn can take a client ahead."""
        most = self._prompt_weight * self._longest_prompt + self._output_weight * self._pool_tokens
        return most / self._smallest_weight

    def counter(self, client: str) -> float:
        """The client's service per weight, lifts included."""
        account = self._accounts[client]
        service = (
            self._prompt_weight * account.prompt_tokens
            + self._output_weight * account.output_tokens
        )
        return account.lifted + service / account.weight

    def on_start(self, view: SchedulerView) -> None:
        """Learn how many tokens a batch can hold."""
        self._pool_tokens = view.cache.num_free_pages * view.cache.page_size

    def candidates(self, view: SchedulerView) -> Proposals:
        """The longest match that rides, else the longest of the least served client."""
        riders = self._riders = []
        for client, account in self._accounts.items():
            self._offer(client, account)
        ahead: list[tuple[float, str]] = []
        try:
            while (least := self._least_served()) is not None:
                limit = self.counter(least) + self._window * self.unit
                while ahead and ahead[0][0] <= limit:
                    client = heappop(ahead)[1]
                    self._offer(client, self._accounts[client])
                chosen = None
                while riders and chosen is None:
                    key, client = riders[0]
                    best = self._accounts[client].queue.first()
                    if best is None or best.key != key:
                        heappop(riders)
                    elif (counter := self.counter(client)) > limit:
                        heappop(riders)
                        heappush(ahead, (counter, client))
                    else:
                        chosen = best.item
                if chosen is None:
                    first = self._accounts[least].queue.first()
                    assert first is not None
                    chosen = first.item
                if not (yield chosen):
                    return
        finally:
            self._riders = None

    def on_arrival(self, sequence: SequenceView) -> None:
        """Queue the request; lift a client that had nothing queued."""
        client = sequence.client
        self._longest_prompt = max(self._longest_prompt, sequence.num_prompt_tokens)
        account = self._accounts.get(client)
        if account is None:
            account = self._accounts[client] = _Account(sequence.weight)
            self._smallest_weight = min(self._smallest_weight, sequence.weight)
        if not len(account.queue):
            self._lift(client, account)
        self._put(sequence)

    def on_match(self, sequence: SequenceView) -> None:
        """Move to where the new match belongs."""
        self._put(sequence)

    def on_preempt(self, sequence: SequenceView) -> None:
        """Queue it again; it was charged already."""
        self._put(sequence)

    def on_admit(self, sequence: SequenceView, cached: int, extend: int) -> None:
        """Charge the whole prompt, cached or not, once."""
        account = self._accounts[sequence.client]
        account.queue.discard(sequence)
        self._offer(sequence.client, account)
        if not len(account.queue):
            self._left_last = sequence.client
        if not sequence.num_preemptions:
            account.prompt_tokens += sequence.num_prompt_tokens

    def on_tokens(self, sequence: SequenceView, count: int) -> None:
        """Charge what was produced."""
        self._accounts[sequence.client].output_tokens += count

    def _put(self, sequence: SequenceView) -> None:
        client = sequence.client
        queue = self._accounts[client].queue
        queue.put(sequence)
        if client not in self._ranked:
            self._ranked[client] = None
            heappush(self._by_counter, (self.counter(client), client))
        self._offer(client, self._accounts[client])

    def _offer(self, client: str, account: _Account) -> None:
        """Enter the client's longest match among the riders of this pass."""
        best = account.queue.first()
        if self._riders is None or best is None:
            return
        if 2 * best.item.num_matched_tokens > best.item.num_tokens:
            heappush(self._riders, (best.key, client))

    def _least_served(self) -> str | None:
        """The queued client with the smallest (counter, name)."""
        heap = self._by_counter
        while heap:
            counter, client = heap[0]
            if not len(self._accounts[client].queue):
                heappop(heap)
                del self._ranked[client]
                continue
            current = self.counter(client)
            if current == counter:
                return client
            heapreplace(heap, (current, client))
        return None

    def _lift(self, client: str, account: _Account) -> None:
        least = self._least_served()
        if least is not None:
            floor = self.counter(least)
        elif self._left_last is not None:
            floor = self.counter(self._left_last)
        else:
            return
        account.lifted += max(0.0, floor - self.counter(client))
