"""Each switch names what it accepts; presets set switches and leave sizes alone."""

from __future__ import annotations

from typing import Any

import pytest

from testbed.core.config import CacheConfig, SchedulerConfig, with_preset
from testbed.core.scheduler import Scheduler
from testbed.policies.eviction.recency import Lru
from testbed.policies.scheduling.arrival import Fcfs


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_pages": 0}, "num_pages=0: at least 1 is needed"),
        ({"page_size": 0}, "page_size=0: at least 1 is needed"),
        ({"kind": "tree"}, "kind='tree': one of radix, block_hash, none is needed"),
        ({"granularity": "block"}, "granularity='block': one of page, node is needed"),
        ({"split_touch": "x"}, "split_touch='x': one of ideal, sglang is needed"),
        ({"insert_at": "end"}, "insert_at='end': one of commit, schedule is needed"),
    ],
)
def test_cache_switches(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CacheConfig(**{"num_pages": 10, **fields})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_running": 0}, "max_running=0: at least 1 is needed"),
        ({"chunk_size": -1}, "chunk_size=-1: at least 0 is needed"),
        ({"max_prefill_tokens": 0}, "max_prefill_tokens=0: at least 1 is needed"),
        ({"batching": "x"}, "batching='x': one of mixed, prefill_first is needed"),
        ({"reserve": "x"}, "reserve='x': one of full, ratio, peak is needed"),
        ({"victim": "x"}, "victim='x': one of last_admitted, fewest_generated, lowest_priority, "),
        ({"min_computed_tokens": 2}, "min_computed_tokens=2: one of 0, 1 is needed"),
        ({"reserve_decay_steps": 0}, "reserve_decay_steps=0: at least 1 is needed"),
        ({"reserve_ratio": 1.5}, "reserve_ratio=1.5: 0 <= reserve_ratio_floor <="),
        ({"reserve_ratio": 0.05}, "reserve_ratio=0.05: 0 <= reserve_ratio_floor <="),
        ({"reserve_ratio_floor": -0.1}, "reserve_ratio_floor=-0.1, reserve_ratio=0.7"),
    ],
)
def test_scheduler_switches(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SchedulerConfig(**fields)


@pytest.mark.parametrize("field", ["chunk_size", "max_prefill_tokens"])
def test_a_step_must_have_room_for_a_page_of_a_chunk(field: str) -> None:
    limits: dict[str, Any] = {field: 15}
    with pytest.raises(ValueError, match=f"{field}=15: .*page_size=16"):
        Scheduler(CacheConfig(10), SchedulerConfig(**limits), Fcfs(), Lru())


def test_whole_prompts_may_be_longer_than_a_step_s_budget() -> None:
    config = SchedulerConfig(chunk_size=0, max_prefill_tokens=15)
    Scheduler(CacheConfig(10), config, Fcfs(), Lru())


def test_presets_set_switches_and_keep_the_pool_in_tokens() -> None:
    cache = CacheConfig(num_pages=77, page_size=32, touch_on_peek=True, cache_outputs=False)
    scheduler = SchedulerConfig(max_running=9, chunk_size=512, reserve="peak")
    assert with_preset("ideal", cache, scheduler) == (cache, scheduler)
    sglang_cache, sglang = with_preset("sglang", cache, scheduler)
    assert (sglang_cache.num_pages, sglang_cache.page_size) == (77 * 32, 1)
    assert (sglang_cache.granularity, sglang_cache.split_touch) == ("node", "sglang")
    assert (sglang.max_running, sglang.batching, sglang.reserve) == (9, "prefill_first", "ratio")
    assert sglang.victim == "fewest_generated"
    vllm_cache, vllm = with_preset("vllm", cache, scheduler)
    assert (vllm_cache.num_pages, vllm_cache.page_size) == (77 * 2, 16)
    assert (vllm_cache.kind, vllm_cache.insert_at) == ("block_hash", "schedule")
    assert (vllm.batching, vllm.chunk_size, vllm.victim) == ("mixed", 512, "last_admitted")


def test_an_unknown_preset_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match="semantics='x': one of ideal, sglang, vllm is needed"):
        with_preset("x", CacheConfig(1), SchedulerConfig())
