"""What routers see of the replicas: live, read-only, O(1) unless said."""

from __future__ import annotations

from typing import Protocol

from testbed.core.request import Tokens
from testbed.core.views import ReadOnly, RequestView


class Routable(Protocol):
    """What stands behind a ReplicaView."""

    index: int

    @property
    def num_waiting(self) -> int:
        """Sequences in its queue."""

    @property
    def num_running(self) -> int:
        """Sequences in its batch."""

    def peek(self, tokens: Tokens, namespace: str) -> int:
        """Leading tokens that it has cached."""


class ReplicaView(ReadOnly):
    """A router's read-only sight of one replica."""

    __slots__ = ("_replica",)

    def __init__(self, replica: Routable) -> None:
        object.__setattr__(self, "_replica", replica)

    _replica: Routable

    @property
    def index(self) -> int:
        """The replica's number, from 0."""
        return self._replica.index

    @property
    def num_waiting(self) -> int:
        """Sequences in its queue."""
        return self._replica.num_waiting

    @property
    def num_running(self) -> int:
        """Sequences in its batch."""
        return self._replica.num_running

    def peek(self, request: RequestView) -> int:
        """Leading prompt tokens that the replica has cached; O(prompt)."""
        return self._replica.peek(request._request.prompt, request.namespace)
