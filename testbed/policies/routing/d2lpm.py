"""Routing by credit and match: Double Deficit LPM."""

from __future__ import annotations

from testbed.core.replica_view import ReplicaView
from testbed.core.views import RequestView
from testbed.policies.routing.load import CountingRouter


class D2lpm(CountingRouter):
    """D2LPM (arXiv 2501.14312): the longest match among replicas where the client has credit.

    Each (client, replica) has a deficit, 0 at first. Of the replicas with a positive deficit for
    the client the one with the longest cached prefix gets the request (ties: fewest requests in
    flight, then the lowest index). It is charged extend_weight * uncached tokens at once and
    output_weight * output tokens at the end. When none is positive, all of the client's deficits
    get `quantum`, in as many rounds as it takes. So a client's work spreads over the replicas by
    the quantum, and within it follows its prefixes. Use DLPM inside the replicas
    (scheduler=dlpm), whose deficits these are independent of.

    extend_weight and output_weight are Dlpm's; client weights are ignored, as there. That refills
    add to all of the client's replicas that have no credit left, and that ties go by load, is our
    reading. A large quantum keeps hot prefixes on one replica, whatever its load; a small one
    replicates them everywhere.
    """

    reads_cache = True

    def __init__(
        self, quantum: int = 32768, extend_weight: int = 1, output_weight: int = 2
    ) -> None:
        super().__init__()
        if quantum < 1 or extend_weight < 0 or output_weight < 0:
            raise ValueError(
                f"quantum={quantum}, extend_weight={extend_weight}, output_weight={output_weight}: "
                "at least 1, 0 and 0 are needed"
            )
        self._quantum = quantum
        self._extend_weight = extend_weight
        self._output_weight = output_weight
        self._deficits: dict[str, list[int]] = {}

    def deficits(self, client: str) -> tuple[int, ...]:
        """The client's credit by replica, in weighted tokens."""
        return tuple(self._deficits[client])

    def pick(self, request: RequestView, replicas: tuple[ReplicaView, ...], now: float) -> int:
        """The longest match with credit."""
        deficits = self._deficits.get(request.client)
        if deficits is None:
            deficits = self._deficits[request.client] = [0] * len(replicas)
        richest = max(deficits)
        if richest <= 0:
            rounds = -richest // self._quantum + 1
            for index, deficit in enumerate(deficits):
                deficits[index] = deficit + rounds * self._quantum
        matches = [replica.peek(request) for replica in replicas]
        chosen = min(
            (index for index, deficit in enumerate(deficits) if deficit > 0),
            key=lambda index: (-matches[index], self.in_flight[index]),
        )
        extend = request.num_prompt_tokens - matches[chosen]
        deficits[chosen] -= self._extend_weight * extend
        return chosen

    def on_finish(self, request: RequestView, replica: int, output_tokens: int, now: float) -> None:
        """Charge the output."""
        super().on_finish(request, replica, output_tokens, now)
        self._deficits[request.client][replica] -= self._output_weight * output_tokens
