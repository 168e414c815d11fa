"""Policies that each break one rule, and the rule."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from testbed.policies import (
    CacheView,
    EvictionPolicy,
    NodeView,
    Proposals,
    ReplicaView,
    RequestView,
    RoutingPolicy,
    SchedulerView,
    SchedulingPolicy,
    SequenceView,
)


class InOrder(SchedulingPolicy):
    """First come, first served: what the others spoil."""

    def candidates(self, view: SchedulerView) -> Proposals:
        for sequence in view.waiting:
            if not (yield sequence):
                return


class Crashes(InOrder):
    """Divides by zero once three wait."""

    def candidates(self, view: SchedulerView) -> Proposals:
        1 / (len(view.waiting) - 3)
        return super().candidates(view)


class Exits(InOrder):
    """Ends the process, as if all were well."""

    def candidates(self, view: SchedulerView) -> Proposals:
        raise SystemExit(0)


class Holds(InOrder):
    """Leaves the replica idle though somebody waits."""

    def candidates(self, view: SchedulerView) -> Proposals:
        return iter(())


class Writes(InOrder):
    """Assigns to a view."""

    def on_arrival(self, sequence: SequenceView) -> None:
        sequence.priority = 1  # type: ignore[misc]


class WritesTokens(InOrder):
    """Makes a prompt writable, and writes to it."""

    def on_arrival(self, sequence: SequenceView) -> None:
        prompt = sequence.prompt
        prompt.flags.writeable = True
        prompt[0] = 0


class Reaches(InOrder):
    """Changes a sequence behind its view."""

    def on_admit(self, sequence: SequenceView, cached: int, extend: int) -> None:
        sequence._sequence.num_matched_tokens += 1


class Remembers(InOrder):
    """Keeps state on its class, which the next run finds."""

    seen: ClassVar[dict[int, int]] = {}

    def candidates(self, view: SchedulerView) -> Proposals:
        waiting = sorted(view.waiting, key=lambda s: (self.seen.get(s.id, 0), s.index))
        for sequence in waiting:
            self.seen[sequence.id] = self.seen.get(sequence.id, 0) + 1
            if not (yield sequence):
                return


class Hashes(SchedulingPolicy):
    """Serves clients in the order of their hashes."""

    def candidates(self, view: SchedulerView) -> Proposals:
        return iter(sorted(view.waiting, key=lambda s: hash(s.client)))


class Spells(SchedulingPolicy):
    """Serves clients whose names are short first."""

    def candidates(self, view: SchedulerView) -> Proposals:
        def rank(sequence: SequenceView) -> tuple[bool, int]:
            return len(sequence.client) > 2, -sequence.index

        return iter(sorted(view.waiting, key=rank))


class Watches(SchedulingPolicy):
    """Looks at the clock, and says that it does not."""

    reacts_to_decoding = False

    def candidates(self, view: SchedulerView) -> Proposals:
        waiting = [s for s in view.waiting if not view.running or view.now > s.arrival + 0.05]
        return iter(waiting)


class Shortest(SchedulingPolicy):
    """Passes long prompts for ever, and does not say so."""

    def candidates(self, view: SchedulerView) -> Proposals:
        for sequence in sorted(view.waiting, key=lambda s: (s.num_tokens, s.index)):
            if not (yield sequence):
                return


class Lifo(SchedulingPolicy):
    """Last come, first served."""

    def candidates(self, view: SchedulerView) -> Proposals:
        for sequence in sorted(view.waiting, key=lambda s: -s.index):
            if not (yield sequence):
                return


class NewestClient(SchedulingPolicy):
    """Serves the client that came last first, in the order of arrival."""

    def __init__(self) -> None:
        self._first: dict[str, int] = {}

    def on_arrival(self, sequence: SequenceView) -> None:
        self._first.setdefault(sequence.client, sequence.index)

    def candidates(self, view: SchedulerView) -> Proposals:
        for sequence in sorted(view.waiting, key=lambda s: (-self._first[s.client], s.index)):
            if not (yield sequence):
                return


class LongestOutput(SchedulingPolicy):
    """Serves the largest output limit first."""

    def candidates(self, view: SchedulerView) -> Proposals:
        for sequence in sorted(view.waiting, key=lambda s: (-s.max_new_tokens, s.index)):
            if not (yield sequence):
                return


class Declared(Shortest):
    """Says so."""

    may_starve = True


class Quadratic(InOrder):
    """Compares everybody with everybody."""

    def candidates(self, view: SchedulerView) -> Proposals:
        waiting = list(view.waiting)
        return iter(sorted(waiting, key=lambda s: sum(other.index < s.index for other in waiting)))


class Churns(InOrder):
    """Preempts whoever runs as long as somebody waits."""

    def preemptions(self, view: SchedulerView) -> Iterable[SequenceView]:
        return view.running


class NamesRoots(EvictionPolicy):
    """Names victims that cannot be evicted."""

    def priority(self, node: NodeView, now: int) -> int:
        return 0

    def victims(self, view: CacheView, need: int) -> Iterable[NodeView]:
        return view.roots()


class ChangesItsMind(EvictionPolicy):
    """Counts its calls, on the class."""

    calls: ClassVar[list[int]] = [0]

    def priority(self, node: NodeView, now: int) -> int:
        self.calls[0] += 1
        return self.calls[0] * 7919 % 101


class Locks(EvictionPolicy):
    """Touches a node behind its view."""

    def priority(self, node: NodeView, now: int) -> int:
        node._node.hits += 1
        return node.last_access


class Misses(RoutingPolicy):
    """Counts replicas from 1."""

    def choose(self, request: RequestView, replicas: tuple[ReplicaView, ...], now: float) -> int:
        return 1 + request.id % len(replicas)


class Rolls(RoutingPolicy):
    """Each replica in turn, with a counter that all instances share."""

    chosen: ClassVar[list[int]] = [0]

    def choose(self, request: RequestView, replicas: tuple[ReplicaView, ...], now: float) -> int:
        self.chosen[0] += 1
        return self.chosen[0] % len(replicas)


BROKEN: tuple[tuple[type[Any], str, str], ...] = (
    (Crashes, "survives", "ZeroDivisionError"),
    (Exits, "survives", "SystemExit: 0"),
    (Holds, "survives", "proposes nothing that runs, though the replica is idle"),
    (Writes, "survives", "views are read-only: priority cannot be set"),
    (Writes, "read_only", "views are read-only: priority cannot be set"),
    (WritesTokens, "read_only", "WRITEABLE"),
    (Reaches, "read_only", "Reaches.on_admit changed the batch"),
    (Remembers, "repeats", "decision"),
    (Hashes, "hash_seeds", "PYTHONHASHSEED"),
    (Spells, "ignores_names", "decision"),
    (Watches, "quiet_steps", "where passes after mere decoding are not skipped"),
    (Shortest, "starvation", "request 8 is passed by 152 of the 161 requests"),
    (Lifo, "starvation", "old among new: request 0 is passed by 152 of the 161 requests"),
    (NewestClient, "starvation", "old among new: request 0 is passed by"),
    (LongestOutput, "starvation", "a short output: request 8 is passed by 152 of the 161 requests"),
    (Quadratic, "growth", "64 waiting requests"),
    (Churns, "survives", "Livelock"),
    (NamesRoots, "survives", "is no evictable leaf"),
    (ChangesItsMind, "repeats", "decision"),
    (Locks, "read_only", "Locks.priority changed the radix tree"),
    (Misses, "survives", "Misses chose replica"),
    (Rolls, "repeats", "decision"),
)
"""Class, the check that must find it, and a part of what it must say."""
