"""Admission by the priority that requests bring, with aging and preemption."""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite
from typing import Literal

from testbed.core.policy import NO_MEMORY, Outcome
from testbed.core.views import SchedulerView, SequenceView
from testbed.policies.scheduling.arrival import OnMisfit
from testbed.policies.scheduling.ranked import Attentive, RankedPolicy

First = Literal["highest", "lowest"]


class Priority(RankedPolicy):
    """By priority, then by arrival.

    first: which values go first: `highest` (SGLang's --enable-priority-scheduling by default) or
    `lowest` (vLLM's --scheduling-policy priority). aging: levels that a request climbs for each
    second since its arrival. As all climb alike, the order of two requests never changes, and none
    waits longer than (difference of levels) / aging for later ones to pass it. With aging=0 low
    priorities starve under load.
    """

    def __init__(
        self, first: First = "highest", aging: float = 0.0, on_misfit: OnMisfit = "stop"
    ) -> None:
        super().__init__(on_misfit)
        if first not in ("highest", "lowest"):
            raise ValueError(f"first={first!r}: highest or lowest is needed")
        if not (isfinite(aging) and aging >= 0):
            raise ValueError(f"aging={aging}: a finite number of at least 0 is needed")
        self._sign = -1 if first == "highest" else 1
        self._aging = aging
        if not aging:
            self.may_starve = True

    def rank(self, sequence: SequenceView) -> tuple[float]:
        """The level at which the request would have had to start at time 0."""
        return (self._sign * sequence.priority + self._aging * sequence.arrival,)


class PreemptivePriority(Priority):
    """Priority, and who is far more urgent takes the place of what runs (SGLang's
    --priority-scheduling-preemption-threshold).

    If the first in the order finds no batch slot or was refused for lack of memory, running
    sequences leave whose level, aging included, is more than `threshold` behind it: the least
    urgent first, of these the newest, as many as are needed, or none if all of them are not
    enough. Room is counted in pages as if everybody's declared output were kept free; an output
    that is shared or never produced makes it less or more. What a victim had computed beyond the
    cached prefix is lost. Low priorities starve under load unless aging is set.
    """

    def __init__(
        self,
        first: First = "highest",
        aging: float = 0.0,
        threshold: float = 10.0,
        on_misfit: OnMisfit = "stop",
    ) -> None:
        super().__init__(first, aging, on_misfit)
        if not (isfinite(threshold) and threshold >= 0):
            raise ValueError(f"threshold={threshold}: a finite number of at least 0 is needed")
        self._threshold = threshold
        self._out_of_memory: SequenceView | None = None

    def candidates(self, view: SchedulerView) -> Attentive:
        """The smallest rank first."""
        self._out_of_memory = None
        return super().candidates(view)

    def on_refusal(self, sequence: SequenceView, outcome: Outcome) -> None:
        """Remember who lacked memory first."""
        if outcome is NO_MEMORY and self._out_of_memory is None:
            self._out_of_memory = sequence

    def preemptions(self, view: SchedulerView) -> Iterable[SequenceView]:
        """Who makes room for the first in the order."""
        first = self._ranking.first()
        if first is None:
            return ()
        newcomer = first.item
        lacks_slot = view.num_free_slots <= 0
        if not lacks_slot and newcomer is not self._out_of_memory:
            return ()
        # Its own match counts as room that it takes, too: it may be evictable now.
        missing = _lifetime_pages(newcomer, view) - _room(view)
        if missing <= 0 and not lacks_slot:
            return ()
        (limit,) = self.rank(newcomer)
        behind = [s for s in view.running if self.rank(s)[0] > limit + self._threshold]
        behind.sort(key=lambda s: (*self.rank(s), s.index), reverse=True)
        victims: list[SequenceView] = []
        for sequence in behind:
            if victims and missing <= 0:
                break
            victims.append(sequence)
            missing -= _lifetime_pages(sequence, view)
        return victims if missing <= 0 else ()


def _lifetime_pages(sequence: SequenceView, view: SchedulerView) -> int:
    tokens = sequence.num_prompt_tokens + sequence.max_new_tokens - 1
    return -(-tokens // view.cache.page_size)


def _room(view: SchedulerView) -> int:
    """Pages that are free or evictable, less the output that running ones may still produce."""
    cache, size = view.cache, view.cache.page_size
    room = cache.num_free_pages + cache.num_evictable_pages
    for sequence in view.running:
        # The newest token's KV is not computed yet.
        computed = sequence.num_prompt_tokens + max(0, sequence.num_generated_tokens - 1)
        held = -(-computed // size)
        room -= _lifetime_pages(sequence, view) - held
    return room
