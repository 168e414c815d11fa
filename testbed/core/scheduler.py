"""Scheduler: continuous batching over one replica's page pool, admission in the policy's order.

A state machine without I/O: `now` is an argument, policies decide, pages are taken, prefixes are
locked. Per step the driver calls schedule, executes the batch, and calls commit.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from heapq import heappop, heappush

import numpy as np

from testbed.core.admission import build_reserve, choose_victim, lifetime_pages
from testbed.core.batch import Batch, Prefill, StepResult, shape_of
from testbed.core.cache_kinds import build_cache
from testbed.core.config import CacheConfig, SchedulerConfig
from testbed.core.cost import CostModel
from testbed.core.decisions import DecisionLog, rows_digest
from testbed.core.decode_set import DecodeSet
from testbed.core.page_pool import Pages
from testbed.core.policy import (
    NO_BUDGET,
    NO_MEMORY,
    Admitted,
    EvictionPolicy,
    Outcome,
    PolicyError,
    Refuse,
    SchedulingPolicy,
)
from testbed.core.proposals import check_verdict, preempted_sequences, proposed_sequence
from testbed.core.request import Request, Sequence, State
from testbed.core.views import OracleView, SchedulerView, SequenceView
from testbed.core.waiting_queue import WaitingQueue


class Scheduler:
    """One replica's queue, running batch and cache.

    waiting, running, step and now may be read; only the methods change them. `log` is None unless
    decisions are recorded. Raises ValueError for configs that could never make progress.
    """

    def __init__(
        self,
        cache: CacheConfig,
        config: SchedulerConfig,
        policy: SchedulingPolicy,
        eviction: EvictionPolicy,
        log: DecisionLog | None = None,
        cost: CostModel | None = None,
    ) -> None:
        config.check_page_size(cache.page_size)
        self.config = config
        self.cache = build_cache(cache, eviction, self)
        self.waiting = WaitingQueue()
        self.running: dict[Sequence, None] = {}
        self.step = 0
        self.now = 0.0
        self.log = log
        self.evicted: list[Pages] = []
        """Cached pages evicted since the last schedule() began, in order."""
        self.refused: list[Sequence] = []
        """Turned away; whoever drives the scheduler takes them out."""
        self._switches = cache
        self.reserve = build_reserve(config, self.cache)
        self.prefilling: dict[Sequence, None] = {}
        self.decoding = DecodeSet(cache.page_size, cache.num_pages)
        self.delayed: list[tuple[float, int, Sequence]] = []
        self._num_delays: dict[int, int] = {}
        self._next_index = 0
        # Whether the last pass ended in refusals, and nothing since could change what a pass does.
        self.settled = False
        self.policy = policy
        kind = type(policy)
        self._name = kind.__name__
        self.preempts = kind.preemptions is not SchedulingPolicy.preemptions
        passes_react = policy.reacts_to_decoding or cache.touch_on_peek or self.preempts
        self._passes_repeat = self.reserve.steady and not passes_react
        self.hears_tokens = kind.on_tokens is not SchedulingPolicy.on_tokens
        self._hears_matches = kind.on_match is not SchedulingPolicy.on_match
        self._view_of = OracleView if policy.oracle else SequenceView
        self._view = SchedulerView(self, cost or CostModel())
        policy.on_start(self._view)
        eviction.on_start(self._view)

    # ---- arrivals

    def add(self, request: Request, now: float) -> Sequence:
        """Queue a request. A sequence in state REFUSED comes back if it can never fit."""
        self.now = now
        sequence = Sequence(request, self._next_index)
        sequence.view = self._view_of(sequence)
        self._next_index += 1
        need = lifetime_pages(sequence, self.cache.page_size)
        if need > self._switches.num_pages:
            self._refuse(sequence, f"needs {need} pages, the pool has {self._switches.num_pages}")
        else:
            self._enqueue(sequence)
        return sequence

    @property
    def next_release(self) -> float | None:
        """When the first delayed request becomes visible; None if none is delayed."""
        return self.delayed[0][0] if self.delayed else None

    def _enqueue(self, sequence: Sequence) -> None:
        self.settled = False
        self.cache.track(sequence)
        delays = self._num_delays.pop(sequence.index, 0) + 1
        verdict = self.policy.on_arrival(sequence.view)
        if verdict is None:
            sequence.state = State.WAITING
            self.waiting.append(sequence)
            return
        self.cache.untrack(sequence)
        check_verdict(verdict, sequence, self.now, delays, self._name)
        if isinstance(verdict, Refuse):
            self._refuse(sequence, verdict.reason)
        else:
            self._num_delays[sequence.index] = delays
            sequence.state = State.DELAYED
            heappush(self.delayed, (verdict.until, sequence.index, sequence))

    def _refuse(self, sequence: Sequence, reason: str) -> None:
        sequence.state = State.REFUSED
        sequence.refusal = reason
        self.refused.append(sequence)
        if self.log is not None:
            self.log.refuse(self.step, sequence)

    # ---- what the cache reports (CacheListener)

    def on_match(self, sequence: Sequence) -> None:
        """Pass a changed match on to the policy."""
        self.settled = False
        if self._hears_matches:
            self.policy.on_match(sequence.view)

    def on_evict(self, pages: Pages) -> None:
        """Note an eviction."""
        self.evicted.append(pages)

    # ---- one step

    def schedule(self, now: float) -> Batch | None:
        """Decide the next step; None if nothing can run before something arrives.

        Raises PolicyError if the policy leaves the replica idle though sequences wait.
        """
        self.now = now
        self.step += 1
        self.cache.step = self.step
        self.evicted = []
        while self.delayed and self.delayed[0][0] <= now:
            self._enqueue(heappop(self.delayed)[2])
        if self.preempts and self.waiting:
            for sequence in preempted_sequences(self.policy.preemptions(self._view), self._name):
                self._preempt(sequence)
        taken: list[Pages] = []
        if self.config.batching == "mixed":
            decodes = self._decode_rows(taken)
            prefills = self._prefill_rows(len(decodes), taken)
        else:
            prefills = self._prefill_rows(0, taken)
            decodes = [] if prefills else self._decode_rows(taken)
        if not decodes and not prefills:
            self.step -= 1
            if self.waiting and not self.running:
                raise PolicyError(
                    f"{self._name} proposes nothing that runs, though the replica is idle"
                )
            return None
        if decodes:
            self.reserve.on_decode_steps(1)
        read = (self.decoding.context + len(decodes), self.decoding.shared) if decodes else (0, 0)
        batch = Batch(self.step, decodes, prefills, shape_of(decodes, *read, prefills))
        if self.log is not None:
            if self.evicted:
                self.log.evict(self.step, np.concatenate(self.evicted), self.cache.page_size)
            rows = len(decodes) + len(prefills)
            tokens = len(decodes) + batch.shape.prefill_tokens
            self.log.batch(self.step, tokens, rows, rows_digest(batch), taken)
        return batch

    def _decode_rows(self, taken: list[Pages]) -> list[Sequence]:
        """Every decoding sequence, each with a page to write to."""
        decoding, cache = self.decoding, self.cache
        while (need := decoding.num_due()) and need > cache.num_available_pages:
            self._preempt(choose_victim(self.running, self.config.victim))
            self.reserve.on_preempt(self.running)
        due = decoding.take_due()
        if due:
            pages = cache.take(len(due))
            for sequence, page in zip(due, pages.tolist(), strict=True):
                sequence.pages[sequence.num_pages] = page
                sequence.num_pages += 1
            self.reserve.on_take(len(due))
            taken.append(pages)
        return list(decoding.members)

    def _prefill_rows(self, num_decodes: int, taken: list[Pages]) -> list[Prefill]:
        """Continue started prefills in admission order, then admit what the policy proposes."""
        config = self.config
        budget = config.max_prefill_tokens
        if config.chunk_size:
            budget = min(budget, config.chunk_size - num_decodes)
        rows: list[Prefill] = []
        for sequence in self.prefilling:
            count = self._chunk(len(sequence.tokens) - sequence.num_computed_tokens, budget)
            if count:
                cached = sequence.num_shared_pages * self.cache.page_size
                sequence.chunk_reread_tokens += sequence.num_computed_tokens - cached
                rows.append(self._prefill(sequence, count))
                budget -= count
        if self.waiting and not self.settled and len(self.running) < config.max_running:
            self._admit(budget, rows, taken)
        return rows

    def _prefill(self, sequence: Sequence, count: int) -> Prefill:
        start = sequence.num_computed_tokens
        if self._switches.insert_at == "schedule":
            self._publish(sequence, start + count)
        return Prefill(sequence, start, count)

    def _publish(self, sequence: Sequence, end: int) -> None:
        if not self._switches.cache_outputs:
            # After a preemption, what was generated is prefilled too.
            end = min(end, sequence.num_prompt_tokens)
        self.cache.publish(sequence, sequence.tokens[:end])

    def _chunk(self, extend: int, budget: int) -> int:
        """How many of `extend` tokens fit the budget: all, or whole pages; 0 if none do."""
        if extend <= budget:
            return extend
        return max(0, budget) - max(0, budget) % self.cache.page_size

    # ---- admission

    def _admit(self, budget: int, rows: list[Prefill], taken: list[Pages]) -> None:
        if self._switches.touch_on_peek:
            for sequence in self.waiting:
                self.cache.touch_match(sequence)
        proposed: set[int] = set()
        proposals = self.policy.candidates(self._view)
        if not isinstance(proposals, Iterator):
            accepted = "a generator or an iterator is needed"
            raise PolicyError(f"{self._name}.candidates returned {type(proposals)}; {accepted}")
        generator = proposals if isinstance(proposals, Generator) else None
        try:
            view = next(proposals)
            while True:
                sequence = proposed_sequence(view, proposed, self._name)
                outcome, count = self._try_admit(sequence, budget, not rows, taken)
                if outcome:
                    rows.append(self._prefill(sequence, count))
                    budget -= count
                    if not self.waiting or len(self.running) >= self.config.max_running:
                        return
                view = next(proposals) if generator is None else generator.send(outcome)
        except StopIteration:
            pass
        finally:
            if generator is not None:
                generator.close()
            for row in rows:
                self.waiting.unlink(row.sequence)
        self.settled = self._passes_repeat

    def _try_admit(
        self, sequence: Sequence, budget: int, first: bool, taken: list[Pages]
    ) -> tuple[Outcome, int]:
        """Admit the sequence if it fits: the outcome and the tokens it computes in this step."""
        size = self.cache.page_size
        known = len(sequence.tokens)
        cached = min(sequence.num_matched_tokens, known - self.config.min_computed_tokens)
        cached -= cached % size
        extend = known - cached
        if self.config.chunk_size:
            count = self._chunk(extend, budget)
        else:
            count = extend if first or extend <= budget else 0
        if count == 0 and extend:
            return NO_BUDGET, 0
        if not self.reserve.fits(sequence, cached, self.running):
            return NO_MEMORY, 0
        self.waiting.remove(sequence)
        self.cache.untrack(sequence)
        self.cache.acquire(sequence, cached)
        sequence.num_shared_pages = sequence.num_pages
        if sequence.admitted_step < 0:
            sequence.num_cached_tokens = cached
            sequence.admitted_step = self.step
            sequence.admitted_time = self.now
        else:
            sequence.num_rehit_tokens += cached
            sequence.num_recomputed_tokens += max(0, sequence.lost_tokens - cached)
        sequence.num_joined_computed = cached
        sequence.state = State.RUNNING
        self.running[sequence] = None
        self.prefilling[sequence] = None
        if self.log is not None:
            self.log.admit(self.step, sequence, cached, extend)
        fresh = -(-known // size) - sequence.num_pages
        if fresh:
            pages = self.cache.take(fresh)
            sequence.pages[sequence.num_pages : sequence.num_pages + fresh] = pages
            sequence.num_pages += fresh
            taken.append(pages)
        self.reserve.on_admit(sequence)
        self.policy.on_admit(sequence.view, cached, extend)
        return Admitted(cached, extend), count

    # ---- results

    def commit(self, batch: Batch, result: StepResult, now: float) -> list[Sequence]:
        """Book a step's outcome at its end; returns the sequences that finished."""
        self.now = now
        produced = batch.decodes
        if produced:
            self.decoding.advance(1)
        for sequence, start, count in batch.prefills:
            sequence.num_joined_computed = start + count
            if self._switches.insert_at == "commit":
                self._publish(sequence, start + count)
            if start + count == len(sequence.tokens):
                sequence.num_joined_generated += 1
                sequence.span_start = self.step
                if sequence.first_token_time < 0:
                    sequence.first_token_time = now
                del self.prefilling[sequence]
                self.decoding.join(sequence)
                produced.append(sequence)
        if batch.prefills:
            # Publishing may give duplicates back to the pool.
            self.settled = False
        if result.tokens is not None:
            for sequence, token in zip(produced, result.tokens.tolist(), strict=True):
                if sequence.generated is not None:
                    sequence.generated.append(token)
                    if token in sequence.request.stop_tokens:
                        self.decoding.finish_now(sequence)
        return self.end_tokens(produced, 1, now)

    def end_tokens(self, produced: list[Sequence], count: int, now: float) -> list[Sequence]:
        """Tell the policy of `count` tokens from each sequence; let the finished ones leave."""
        if self.hears_tokens:
            for sequence in produced:
                self.policy.on_tokens(sequence.view, count)
        finished = self.decoding.take_finished()
        for sequence in finished:
            self._finish(sequence, now)
        return finished

    def _finish(self, sequence: Sequence, now: float) -> None:
        if self._switches.cache_outputs and sequence.num_generated_tokens > 1:
            # The last token's KV was never computed.
            outputs = sequence.output_tokens()[:-1]
            self.cache.publish(sequence, np.concatenate((sequence.request.prompt, outputs)))
        self._leave(sequence, self.step)
        sequence.state = State.FINISHED
        sequence.finish_time = now
        self.policy.on_finish(sequence.view)
        # Without the cycle its memory returns now, not at the next garbage collection.
        del sequence.view
        if self.log is not None:
            self.log.finish(self.step, sequence)

    def _leave(self, sequence: Sequence, last_step: int) -> None:
        self.settled = False
        self.reserve.on_leave(sequence)
        del self.running[sequence]
        if sequence in self.prefilling:
            del self.prefilling[sequence]
        else:
            self.decoding.leave(sequence)
        self.cache.release(sequence)
        if sequence.span_start >= 0:
            sequence.decode_spans.append((sequence.span_start, last_step))
            sequence.span_start = -1

    # ---- preemption

    def _preempt(self, sequence: Sequence) -> None:
        if self.log is not None:
            self.log.preempt(self.step, sequence)
        self._leave(sequence, self.step - 1)
        sequence.num_preemptions += 1
        sequence.lost_tokens = sequence.num_computed_tokens
        sequence.num_joined_computed = 0
        sequence.tokens = np.concatenate((sequence.request.prompt, sequence.output_tokens()))
        sequence.state = State.WAITING
        self.waiting.push_front(sequence)
        self.cache.track(sequence)
        self.policy.on_preempt(sequence.view)
