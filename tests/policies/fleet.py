"""Stand-ins for what a router sees, and for the world that tells it what happens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from testbed.core.cost import CostModel
from testbed.core.policy import RoutingPolicy
from testbed.core.request import Request
from testbed.core.views import RequestView
from tests.core.building import make_request


@dataclass
class Shown:
    """What a router sees of a replica; the cached prefix is of every prompt."""

    index: int
    num_waiting: int = 0
    num_running: int = 0
    cached: int | None = None
    kv_usage: float = 0.0
    page_size: int = 1

    def peek(self, request: RequestView) -> int:
        if self.cached is None:
            raise AssertionError("this router does not look at the cache")
        return min(self.cached, request.num_prompt_tokens)


class Fleet:
    """Replicas, a router that was started on them, and requests by number."""

    def __init__(self, router: RoutingPolicy, replicas: int | Sequence[Shown]) -> None:
        if isinstance(replicas, int):
            replicas = [Shown(index) for index in range(replicas)]
        self.router = router
        self.replicas: Any = tuple(replicas)
        self._requests: list[Request] = []
        self._sent: list[int] = []
        router.on_start(self.replicas, CostModel())

    def send(self, prompt: Iterable[int] = (1,), now: float = 0.0, **fields: Any) -> int:
        """Route a request; the replica it went to."""
        request = make_request(len(self._requests), prompt, arrival=now, **fields)
        chosen = self.router.choose(RequestView(request), self.replicas, now)
        self._requests.append(request)
        self._sent.append(chosen)
        return chosen

    def start(self, number: int, now: float = 0.0) -> None:
        """The request that was sent as this number produces its first token."""
        view = RequestView(self._requests[number])
        self.router.on_first_token(view, self._sent[number], now)

    def finish(self, number: int, output_tokens: int = 1, now: float = 0.0) -> None:
        """The request that was sent as this number leaves."""
        view = RequestView(self._requests[number])
        self.router.on_finish(view, self._sent[number], output_tokens, now)
