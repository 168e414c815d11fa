"""A real model's output ends with a stop token, or at its limit."""

from __future__ import annotations

from typing import Any

import numpy as np

from testbed.core.batch import StepResult
from testbed.core.config import CacheConfig, SchedulerConfig
from testbed.core.request import Request, State
from testbed.core.scheduler import Scheduler
from testbed.policies.eviction.recency import Lru
from testbed.policies.scheduling.arrival import Fcfs
from tests.core.building import tokens_of


def serve(outputs: dict[int, list[int]], **fields: Any) -> tuple[dict[int, list[int]], Scheduler]:
    """Serve a request for each row; the "model" says its tokens one after the other."""
    config = CacheConfig(num_pages=100, page_size=1)
    scheduler = Scheduler(config, SchedulerConfig(), Fcfs(), Lru())
    for id in outputs:
        prompt = tokens_of(range(100 * id, 100 * id + 3))
        scheduler.add(Request(id, prompt, max_new_tokens=5, **fields), 0.0)
    said: dict[int, list[int]] = {}
    now = 0.0
    while (batch := scheduler.schedule(now)) is not None:
        rows = [*batch.decodes, *(row.sequence for row in batch.prefills if row.completes)]
        tokens = [outputs[s.request.id][s.num_generated_tokens] for s in rows]
        now += 1
        finished = scheduler.commit(batch, StepResult(1.0, np.array(tokens, np.int32)), now)
        scheduler.cache.check(scheduler.running)
        for sequence in finished:
            assert sequence.state is State.FINISHED
            said[sequence.request.id] = sequence.output_tokens().tolist()
    return said, scheduler


def test_the_stop_token_is_the_last_one() -> None:
    said, _ = serve({1: [7, 8, 9, 7, 8], 2: [8, 9, 1, 1, 1], 3: [4, 4, 4, 4, 4]}, stop_tokens=(9,))
    assert said == {1: [7, 8, 9], 2: [8, 9], 3: [4, 4, 4, 4, 4]}


def test_a_first_token_may_stop() -> None:
    said, scheduler = serve({1: [9, 1, 1, 1, 1]}, stop_tokens=(3, 9))
    assert said == {1: [9]}
    assert not scheduler.running


def test_what_stopped_early_leaves_its_computed_tokens_in_the_cache() -> None:
    _, scheduler = serve({1: [7, 8, 9, 7, 8]}, stop_tokens=(9,))
    # Prompt and output, less the stop token, whose KV was never computed.
    assert scheduler.cache.peek(tokens_of([100, 101, 102, 7, 8, 9])) == 5


def test_a_stop_at_the_limit_finishes_once() -> None:
    said, _ = serve({1: [7, 8, 9, 7, 9]}, stop_tokens=(9,))
    assert said == {1: [7, 8, 9]}
    said, _ = serve({1: [7, 8, 6, 7, 9]}, stop_tokens=(9,))
    assert said == {1: [7, 8, 6, 7, 9]}
