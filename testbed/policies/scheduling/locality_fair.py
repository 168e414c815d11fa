"""Admission by service and cached prefix: fair between clients, local inside them."""

from __future__ import annotations

from heapq import heappop, heappush
from math import inf, isfinite

from testbed.core.policy import Proposals
from testbed.core.views import SchedulerView, SequenceView
from testbed.policies.scheduling.match_queue import Key, MatchQueue
from testbed.policies.scheduling.vtc import ServiceCounters


class LocalityFair(ServiceCounters):
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
        super().__init__(prompt_weight, output_weight, 0.0, 0.0, 0.0, "paper", None)
        if not (isfinite(window) and window >= 0):
            raise ValueError(f"window={window}: a finite number of at least 0 is needed")
        self._window = window
        self._longest_prompt = 0
        self._pool_tokens = 0
        self._smallest_weight = inf
        self._matches: dict[str, MatchQueue] = {}
        # During a pass: the longest match of each client, if it may ride; some are stale.
        self._riders: list[tuple[Key, str]] | None = None

    @property
    def unit(self) -> float:
        """U: how far one turn can take a client ahead."""
        most = self._prompt_weight * self._longest_prompt + self._output_weight * self._pool_tokens
        return most / self._smallest_weight

    def on_start(self, view: SchedulerView) -> None:
        """Learn how many tokens a batch can hold."""
        self._pool_tokens = view.cache.num_free_pages * view.cache.page_size

    def candidates(self, view: SchedulerView) -> Proposals:
        """The longest match that rides, else the longest of the least served client."""
        riders = self._riders = []
        for client in self._matches:
            self._offer(client)
        ahead: list[tuple[float, str]] = []
        try:
            while (least := self.least_served()) is not None:
                limit = self.counter(least) + self._window * self.unit
                while ahead and ahead[0][0] <= limit:
                    self._offer(heappop(ahead)[1])
                chosen = None
                while riders and chosen is None:
                    key, client = riders[0]
                    best = self._matches[client].first()
                    if best is None or best.key != key:
                        heappop(riders)
                    elif (counter := self.counter(client)) > limit:
                        heappop(riders)
                        heappush(ahead, (counter, client))
                    else:
                        chosen = best.item
                if chosen is None:
                    first = self._matches[least].first()
                    assert first is not None
                    chosen = first.item
                if not (yield chosen):
                    return
        finally:
            self._riders = None

    def on_arrival(self, sequence: SequenceView) -> None:
        """Queue the request; lift a client that had nothing queued."""
        self._longest_prompt = max(self._longest_prompt, sequence.num_prompt_tokens)
        self._smallest_weight = min(self._smallest_weight, sequence.weight)
        super().on_arrival(sequence)
        self._put(sequence)

    def on_match(self, sequence: SequenceView) -> None:
        """Move to where the new match belongs."""
        self._put(sequence)

    def on_preempt(self, sequence: SequenceView) -> None:
        """Queue it again; it was charged already."""
        super().on_preempt(sequence)
        self._put(sequence)

    def on_admit(self, sequence: SequenceView, cached: int, extend: int) -> None:
        """Charge the whole prompt, cached or not, once."""
        self._matches[sequence.client].discard(sequence)
        self._offer(sequence.client)
        super().on_admit(sequence, cached, extend)

    def _put(self, sequence: SequenceView) -> None:
        self._matches.setdefault(sequence.client, MatchQueue()).put(sequence)
        self._offer(sequence.client)

    def _offer(self, client: str) -> None:
        """Enter the client's longest match among the riders of this pass."""
        best = self._matches[client].first()
        if self._riders is None or best is None:
            return
        if 2 * best.item.num_matched_tokens > best.item.num_tokens:
            heappush(self._riders, (best.key, client))
