"""What routers see of the replicas: read-only, O(1) unless said.

How old it is, is the world's `staleness`: with 0 everything is live, with T seconds it is as of the
last multiple of T (before what arrives at that very instant), load and caches alike. Meant to be
read inside RoutingPolicy.choose.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from testbed.core.request import Request
from testbed.core.views import ReadOnly, RequestView


class Load(Protocol):
    """What a replica reports of itself; the fields of ReplicaView by the same names."""

    @property
    def num_waiting(self) -> int: ...
    @property
    def num_running(self) -> int: ...
    @property
    def num_pending_tokens(self) -> int: ...
    @property
    def num_context_tokens(self) -> int: ...
    @property
    def kv_usage(self) -> float: ...


class Matches(Protocol):
    """Who has cached how much of a request's prompt."""

    def lengths(self, request: Request) -> Sequence[int]:
        """By replica: leading prompt tokens that it has cached."""


class ReplicaView(ReadOnly):
    """A router's read-only sight of one replica."""

    __slots__ = ("_load", "_matches", "index", "page_size")

    _load: Load
    _matches: Matches
    index: int
    """The replica's number, from 0."""
    page_size: int
    """Tokens a page of its cache holds."""

    def __init__(self, index: int, page_size: int, load: Load, matches: Matches) -> None:
        object.__setattr__(self, "index", index)
        object.__setattr__(self, "page_size", page_size)
        object.__setattr__(self, "_load", load)
        object.__setattr__(self, "_matches", matches)

    @property
    def num_waiting(self) -> int:
        """Sequences in its queue."""
        return self._load.num_waiting

    @property
    def num_running(self) -> int:
        """Sequences in its batch."""
        return self._load.num_running

    @property
    def num_pending_tokens(self) -> int:
        """Tokens that it must still prefill if nothing more is found in its cache: those of the
        whole queue, and the rest of the prefills under way; O(prefills under way)."""
        return self._load.num_pending_tokens

    @property
    def num_context_tokens(self) -> int:
        """Tokens whose KV the running sequences have; O(prefills under way)."""
        return self._load.num_context_tokens

    @property
    def kv_usage(self) -> float:
        """The share of its pages that running sequences hold, 0 to 1; what could be evicted counts
        as free, as in vLLM's gauge."""
        return self._load.kv_usage

    def peek(self, request: RequestView) -> int:
        """Leading prompt tokens that the replica has cached, in whole pages.

        The first call for a request looks all replicas up at once, in O(prompt + nodes on its
        path); the others are O(1). PolicyError if the router declares reads_cache = False.
        """
        return self._matches.lengths(request._request)[self.index]
