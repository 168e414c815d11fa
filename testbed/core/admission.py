"""Admission reserve: how much memory a newcomer must leave to what already runs.

All counts are pages. "Room" is what is free or evictable once the newcomer's own cached prefix is
locked. A sequence takes the pages of its whole prompt when it is admitted, and those of its output
one by one; the last output token's KV is never computed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection

import numpy as np

from testbed.core.config import SchedulerConfig
from testbed.core.prefix_cache import PrefixCache
from testbed.core.request import Sequence


def lifetime_pages(sequence: Sequence, page_size: int) -> int:
    """Pages the sequence holds at most, its declared output limit taken at its word."""
    tokens = sequence.num_prompt_tokens + sequence.request.max_new_tokens - 1
    return -(-tokens // page_size)


def choose_victim(running: Collection[Sequence], rule: str) -> Sequence:
    """Who is preempted: the one admitted last, or the one that has generated least, of all or of
    the lowest or highest priority.

    running: in admission order. Of those that have generated least the one with the longest prompt
    goes, as in SGLang.
    """
    if rule == "last_admitted":
        return list(running)[-1]
    sign = {"lowest_priority": 1, "highest_priority": -1}.get(rule, 0)
    return min(
        running,
        key=lambda s: (
            sign * s.request.priority,
            s.num_generated_tokens,
            -s.num_prompt_tokens,
            -s.index,
        ),
    )


class Reserve(ABC):
    """Decides whether a newcomer fits; hears what the running sequences take and give back."""

    steady: bool = False
    """Whether a newcomer that does not fit cannot fit before a running sequence leaves."""

    def __init__(self, cache: PrefixCache) -> None:
        self._cache = cache

    @abstractmethod
    def fits(self, sequence: Sequence, cached: int, running: Collection[Sequence]) -> bool:
        """Whether the sequence may run with `cached` tokens of its prefix taken from the cache."""

    def on_admit(self, sequence: Sequence) -> None:
        """The sequence holds its prompt's pages now."""

    def on_take(self, count: int) -> None:
        """Running sequences took pages for their output."""

    def on_leave(self, sequence: Sequence) -> None:
        """The sequence finished or was preempted; it still holds its pages."""

    def on_decode_steps(self, count: int) -> None:
        """`count` steps with decode rows were scheduled."""

    def on_preempt(self, running: Collection[Sequence]) -> None:
        """Memory ran out; `running` is what still runs."""

    def _room(self, sequence: Sequence, cached: int) -> int:
        held_back = self._cache.evictable_match_pages(sequence, cached)
        return self._cache.num_available_pages - held_back

    def _need(self, sequence: Sequence, cached: int) -> int:
        size = self._cache.page_size
        return lifetime_pages(sequence, size) - cached // size


class FullReserve(Reserve):
    """Keeps every running sequence's whole declared output: nothing is ever preempted."""

    steady = True

    def __init__(self, cache: PrefixCache) -> None:
        super().__init__(cache)
        self._promised = 0

    def fits(self, sequence: Sequence, cached: int, running: Collection[Sequence]) -> bool:
        """Whether the newcomer's lifetime fits beside all that is promised."""
        return self._need(sequence, cached) <= self._room(sequence, cached) - self._promised

    def on_admit(self, sequence: Sequence) -> None:
        """Promise the output's pages."""
        self._promised += lifetime_pages(sequence, self._cache.page_size) - sequence.num_pages

    def on_take(self, count: int) -> None:
        """A promise was kept."""
        self._promised -= count

    def on_leave(self, sequence: Sequence) -> None:
        """What it did not take is no longer promised."""
        self._promised -= lifetime_pages(sequence, self._cache.page_size) - sequence.num_pages


class RatioReserve(Reserve):
    """Keeps a share of the running sequences' remaining output, as SGLang's new_token_ratio.

    The share starts at reserve_ratio and falls linearly to its floor over reserve_decay_steps
    decode steps; a preemption sets it anew from the running batch, (generated + 20 n) /
    (declared + 1), unless it started at 0. The newcomer's output counts in full, or not at all
    without reserve_newcomer (vLLM). Outputs are clipped to 4096 tokens, as in SGLang 0.5.23.
    """

    CLIP = 4096
    RETRACT_STEPS = 20

    def __init__(self, cache: PrefixCache, config: SchedulerConfig) -> None:
        super().__init__(cache)
        self._initial = config.reserve_ratio
        self._floor = config.reserve_ratio_floor
        self._decay = (
            config.reserve_ratio - config.reserve_ratio_floor
        ) / config.reserve_decay_steps
        self._counts_newcomer = config.reserve_newcomer
        self._start = self._initial
        self._steps = 0

    @property
    def ratio(self) -> float:
        """The share that is kept now."""
        return max(self._floor, self._start - self._steps * self._decay)

    def fits(self, sequence: Sequence, cached: int, running: Collection[Sequence]) -> bool:
        """Whether prompt and clipped output fit beside the kept share of what runs."""
        size = self._cache.page_size
        if not running:
            self._start, self._steps = self._initial, 0
        remaining = sum(self._remaining(s) for s in running)
        kept = -(-int(remaining * self.ratio) // size)
        output = self._remaining(sequence) if self._counts_newcomer else 1
        need = -(-(len(sequence.tokens) + output - 1) // size) - cached // size
        return need <= self._room(sequence, cached) - kept

    def on_decode_steps(self, count: int) -> None:
        """Decay."""
        self._steps += count

    def on_preempt(self, running: Collection[Sequence]) -> None:
        """Estimate the share anew from what still runs."""
        if not self._initial:
            return
        generated = sum(s.num_generated_tokens for s in running)
        declared = sum(s.request.max_new_tokens for s in running)
        estimate = (generated + self.RETRACT_STEPS * len(running)) / (declared + 1)
        self._start, self._steps = min(1.0, estimate), 0

    def _remaining(self, sequence: Sequence) -> int:
        return min(sequence.request.max_new_tokens - sequence.num_generated_tokens, self.CLIP)


class PeakReserve(Reserve):
    """Keeps the worst moment to come (LightLLM's formula, the memory test of the VTC artifact).

    Memory peaks when a sequence finishes. When the one with r tokens to go does, everybody with at
    least r to go has grown by r: the pool must hold the largest of these sums. Counted in pages to
    the token, where LightLLM's own formula is up to a step off. It takes everybody to
    decode in step from now on; a newcomer that is prefilled in chunks starts later, so that memory
    can still run out. O(running^2) a decision.
    """

    def __init__(self, cache: PrefixCache, config: SchedulerConfig) -> None:
        super().__init__(cache)
        # Only a mixed step's decodes have the pages of their newest tokens when newcomers are
        # looked at.
        self._behind = int(config.batching != "mixed")

    def fits(self, sequence: Sequence, cached: int, running: Collection[Sequence]) -> bool:
        """Whether the peak stays inside the pool."""
        size = self._cache.page_size
        rows = [self._row(s, s.num_shared_pages) for s in running]
        rows.append(self._row(sequence, cached // size))
        to_go, held, shared = np.array(sorted(rows, reverse=True)).T
        pages = -(-(held + to_go[:, None]) // size) - shared
        peak = int(np.tril(pages).sum(axis=1).max())
        in_use = sum(s.num_pages - s.num_shared_pages for s in running)
        return peak <= self._room(sequence, cached) + in_use

    def _row(self, sequence: Sequence, shared_pages: int) -> tuple[int, int, int]:
        """(tokens to go, tokens held, pages shared with the cache) of one sequence."""
        total = sequence.num_prompt_tokens + sequence.request.max_new_tokens - 1
        held = sequence.num_prompt_tokens + sequence.num_generated_tokens
        if sequence.decode_set is not None:
            held -= self._behind
        return total - held, held, shared_pages


def build_reserve(config: SchedulerConfig, cache: PrefixCache) -> Reserve:
    """The reserve that the config names."""
    if config.reserve == "full":
        return FullReserve(cache)
    if config.reserve == "ratio":
        return RatioReserve(cache, config)
    return PeakReserve(cache, config)
