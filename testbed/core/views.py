"""The concrete views that a scheduler hands to its policy: read-only, live, without copies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from testbed.core.policy import ClientView, NodeView, SequenceView
from testbed.core.prefix_cache import PrefixCache
from testbed.core.request import Tokens
from testbed.core.waiting_queue import WaitingQueue

if TYPE_CHECKING:
    from testbed.core.scheduler import Scheduler


class ReadOnly:
    """Makes assignment an error that names the field."""

    __slots__ = ()

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"views are read-only: {name} cannot be set")


class LiveCacheView(ReadOnly):
    """The CacheView over a PrefixCache."""

    __slots__ = ("_cache",)

    def __init__(self, cache: PrefixCache) -> None:
        object.__setattr__(self, "_cache", cache)

    _cache: PrefixCache

    @property
    def page_size(self) -> int:
        """Tokens a page holds."""
        return self._cache.page_size

    @property
    def num_free_pages(self) -> int:
        """Pages that hold nothing."""
        return self._cache.num_free_pages

    @property
    def num_evictable_pages(self) -> int:
        """Cached pages that no running sequence locks."""
        return self._cache.num_evictable_pages

    @property
    def num_locked_pages(self) -> int:
        """Cached pages on the path of a running sequence."""
        return self._cache.num_locked_pages

    def peek(self, tokens: Tokens, namespace: str = "") -> int:
        """Leading tokens that are cached, in whole pages; O(len(tokens)); changes nothing."""
        return self._cache.peek(tokens, namespace)

    def evictable_leaves(self) -> Iterator[NodeView]:
        """The nodes that may be evicted now, in insertion order; O(nodes)."""
        return self._cache.evictable_leaves()

    def roots(self) -> Iterator[NodeView]:
        """The radix tree's roots, one a namespace; nothing without a tree."""
        return self._cache.roots()


class LiveWaitingView(ReadOnly):
    """The WaitingView over a WaitingQueue."""

    __slots__ = ("_queue",)

    def __init__(self, queue: WaitingQueue) -> None:
        object.__setattr__(self, "_queue", queue)

    _queue: WaitingQueue

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[SequenceView]:
        return (sequence.view for sequence in self._queue)


class LiveSchedulerView(ReadOnly):
    """The SchedulerView over a Scheduler."""

    __slots__ = ("_cache_view", "_scheduler", "_waiting_view")

    def __init__(self, scheduler: Scheduler) -> None:
        object.__setattr__(self, "_scheduler", scheduler)
        object.__setattr__(self, "_cache_view", LiveCacheView(scheduler.cache))
        object.__setattr__(self, "_waiting_view", LiveWaitingView(scheduler.waiting))

    _scheduler: Scheduler
    _cache_view: LiveCacheView
    _waiting_view: LiveWaitingView

    @property
    def now(self) -> float:
        """Seconds; the instant of this pass."""
        return self._scheduler.now

    @property
    def step(self) -> int:
        """Steps scheduled so far."""
        return self._scheduler.step

    @property
    def waiting(self) -> LiveWaitingView:
        """The queue."""
        return self._waiting_view

    @property
    def running(self) -> tuple[SequenceView, ...]:
        """Admitted sequences in admission order; O(running)."""
        return tuple(sequence.view for sequence in self._scheduler.running)

    @property
    def cache(self) -> LiveCacheView:
        """The prefix cache."""
        return self._cache_view

    @property
    def clients(self) -> Mapping[str, ClientView]:
        """Clients with waiting or running sequences, by name; O(waiting + running) to build."""
        waiting: dict[str, int] = {}
        running: dict[str, int] = {}
        for sequence in self._scheduler.waiting:
            waiting[sequence.request.client] = waiting.get(sequence.request.client, 0) + 1
        for sequence in self._scheduler.running:
            running[sequence.request.client] = running.get(sequence.request.client, 0) + 1
        names = sorted(waiting.keys() | running.keys())
        return {name: ClientView(waiting.get(name, 0), running.get(name, 0)) for name in names}
