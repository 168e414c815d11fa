"""Admission by groups that take turns or keep together: by hit ratio, by routing key."""

from __future__ import annotations

from typing import Literal

from testbed.core.policy import Proposals, SchedulingPolicy
from testbed.core.views import SchedulerView, SequenceView
from testbed.policies.scheduling.ranked import Ranking


class Preble(SchedulingPolicy):
    """Ten priority groups by hit ratio, in turn: Preble's local scheduler (arXiv 2407.00023), its
    `fcfs-mpq`.

    A request with a share s of its tokens cached is in group 0 if s = 0, else in ceil(10 s) - 1.
    Each pass serves one group, from 9 down to 0 and round again, empty ones left out: at most
    (group + 1) * slots of its requests in arrival order, skipping those that do not fit. So many
    hits get ten times the slots of none, and every group gets its turn.

    Preble fixes a request's group when it arrives; here it follows the match. A pass serves a
    single group, so a small one leaves the batch half empty; skipped requests may starve.
    """

    GROUPS = 10
    may_starve = True

    def __init__(self, slots: int = 10) -> None:
        if slots < 1:
            raise ValueError(f"slots={slots}: at least 1 is needed")
        self._slots = slots
        self._groups: list[Ranking[SequenceView]] = [Ranking() for _ in range(self.GROUPS)]
        self._group_of: dict[int, int] = {}
        self._turn = self.GROUPS - 1

    def candidates(self, view: SchedulerView) -> Proposals:
        """Who may go of the next group that is not empty."""
        group = self._next_group()
        ranking = self._groups[group]
        left = (group + 1) * self._slots
        passed: dict[int, SequenceView] = {}
        try:
            while left and (best := ranking.first()) is not None:
                sequence = best.item
                # An eviction meanwhile may have placed again who was passed over.
                if sequence.index not in passed:
                    if (yield sequence):
                        left -= 1
                        continue
                    passed[sequence.index] = sequence
                ranking.discard(sequence)
        finally:
            for sequence in passed.values():
                self._place(sequence)

    def on_arrival(self, sequence: SequenceView) -> None:
        """Enter the group of its match."""
        self._place(sequence)

    def on_match(self, sequence: SequenceView) -> None:
        """Move to the group of the new match."""
        self._groups[self._group_of[sequence.index]].discard(sequence)
        self._place(sequence)

    def on_preempt(self, sequence: SequenceView) -> None:
        """Enter a group again."""
        self._place(sequence)

    def on_admit(self, sequence: SequenceView, cached: int, extend: int) -> None:
        """Leave the group."""
        self._groups[self._group_of.pop(sequence.index)].discard(sequence)

    def _place(self, sequence: SequenceView) -> None:
        hits = -(-self.GROUPS * sequence.num_matched_tokens // sequence.num_tokens)
        group = max(0, hits - 1)
        self._group_of[sequence.index] = group
        self._groups[group].place(sequence, (sequence.index,))

    def _next_group(self) -> int:
        for step in range(self.GROUPS):
            group = (self._turn - step) % self.GROUPS
            if len(self._groups[group]):
                self._turn = group - 1
                return group
        raise AssertionError("a pass is made only while somebody waits")


class RoutingKey(SchedulingPolicy):
    """Requests whose key many running ones have go first, the others after (SGLang's
    `routing-key`).

    key: what stands for SGLang's routing key: the program, the client or the namespace; a request
    without a program has none. Keys by their number in the running batch when the pass begins,
    most first, ties by name; then all others; inside each, arrival order. Affinity without a look
    at the cache; keys that do not run starve under load.
    """

    reacts_to_decoding = False
    may_starve = True

    def __init__(self, key: Literal["program", "client", "namespace"] = "program") -> None:
        if key not in ("program", "client", "namespace"):
            raise ValueError(f"key={key!r}: program, client or namespace is needed")
        self._key = key
        self._waiting: dict[str, Ranking[SequenceView]] = {}
        self._running: dict[str, int] = {}

    def candidates(self, view: SchedulerView) -> Proposals:
        """Those of running keys, then the others, to the first misfit."""
        hot = sorted(self._running.items(), key=lambda item: (-item[1], item[0]))
        for key, _ in hot:
            while (best := self._first(key)) is not None:
                if not (yield best):
                    return
        for sequence in view.waiting:
            if not (yield sequence):
                return

    def on_arrival(self, sequence: SequenceView) -> None:
        """Queue under its key."""
        key = self._key_of(sequence)
        if key is not None:
            self._waiting.setdefault(key, Ranking()).place(sequence, (sequence.index,))

    def on_admit(self, sequence: SequenceView, cached: int, extend: int) -> None:
        """The key runs once more."""
        key = self._key_of(sequence)
        if key is None:
            return
        self._running[key] = self._running.get(key, 0) + 1
        self._waiting[key].discard(sequence)
        if not len(self._waiting[key]):
            del self._waiting[key]

    def on_preempt(self, sequence: SequenceView) -> None:
        """The key runs once less; the sequence queues again."""
        self.on_finish(sequence)
        self.on_arrival(sequence)

    def on_finish(self, sequence: SequenceView) -> None:
        """The key runs once less."""
        key = self._key_of(sequence)
        if key is None:
            return
        self._running[key] -= 1
        if not self._running[key]:
            del self._running[key]

    def _first(self, key: str) -> SequenceView | None:
        ranking = self._waiting.get(key)
        best = None if ranking is None else ranking.first()
        return None if best is None else best.item

    def _key_of(self, sequence: SequenceView) -> str | None:
        key: str | None = getattr(sequence, self._key)
        return key
