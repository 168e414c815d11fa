"""The keys of the simple eviction policies; the order they lead to is tested with the cache and by
the cases, and parameters that make no sense are refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from testbed.policies import EvictionPolicy, registry
from tests.policies.evicting import Served


@dataclass
class Shown:
    last_access: int = 0
    created: int = 0
    hits: int = 1
    state: Any = None


@pytest.mark.parametrize(  # rows 40-47
    ("name", "parameters", "node", "key"),
    [
        ("lru", {}, Shown(last_access=42), 42),
        ("fifo", {}, Shown(last_access=9, created=7), 7),
        ("lfu", {}, Shown(hits=5, last_access=3), (5, 3)),
        ("mru", {}, Shown(last_access=5), -5),
        ("filo", {}, Shown(created=3), -3),
        ("priority", {}, Shown(state=2, last_access=4), (2, 4)),
        ("slru", {}, Shown(hits=1, last_access=6), (0, 6)),
        ("slru", {}, Shown(hits=2, last_access=6), (1, 6)),
        ("slru", {}, Shown(hits=100, last_access=6), (1, 6)),
        ("slru", {"threshold": 5}, Shown(hits=4, last_access=6), (0, 6)),
        ("slru", {"threshold": 5}, Shown(hits=5, last_access=6), (1, 6)),
    ],
)
def test_keys(name: str, parameters: dict[str, Any], node: Any, key: Any) -> None:
    assert registry.eviction(name, **parameters).priority(node, 1000) == key


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("slru", {"threshold": 0}, "threshold=0: at least 1 request"),
        ("slru_decay", {"threshold": 0}, "threshold=0: at least 1 request"),
        ("slru_decay", {"decay": 0.0}, r"debounce=0\.1, decay=0\.0: seconds"),
        ("pin", {"max_share": 1.5}, "max_share=1.5: a share of the pool from 0 to 1"),
        ("ttl", {"max_share": -0.1}, "max_share=-0.1: a share of the pool"),
        ("ttl", {"seconds": -1.0}, "seconds=-1.0: at least 0"),
        ("marconi", {"alpha": -1.0}, "alpha=-1.0: at least 0"),
        ("tail_lru", {"threshold": -1}, "threshold=-1: tokens from 0"),
        ("tail_lru", {"next_prompt": -1}, "next_prompt=-1: tokens from 0"),
        ("reuse_probability", {"prior_seconds": 0.0}, "prior_seconds=0.0: more than 0"),
        ("reuse_probability", {"rate": 1.5}, "rate=1.5: more than 0 and at most 1"),
        ("reuse_probability", {"last_turn": -1}, "last_turn=-1: at least 0"),
        ("s3_fifo", {"small_share": 1.0}, "small_share=1.0: between 0 and 1"),
        ("s3_fifo", {"ghost_share": -1.0}, "ghost_share=-1.0: at least 0"),
        ("s3_fifo", {"ghost_share": 101.0}, "ghost_share=101.0: at least 0 and at most 100"),
        ("s3_fifo", {"ghost_share": float("nan")}, "ghost_share=nan: at least 0 and at most 100"),
        ("s3_fifo", {"threshold": 0}, "threshold=0: at least 1 use"),
        ("look_ahead", {"window": 0}, "window=0: at least 1 sequence"),
        ("look_ahead", {"window": 10**30}, "at least 1 sequence is needed, at most 1000000"),
        ("belady", {"min_computed_tokens": 2}, "min_computed_tokens=2: 0 or 1"),
    ],
)
def test_parameters_are_checked(name: str, parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        registry.eviction(name, **parameters)


def test_a_protected_segment_withstands_a_scan() -> None:
    cache = Served(registry.eviction("slru"), 6)
    for prompt in ([1, 2], [1, 2, 3], [4, 5, 6], [7, 8, 9], [10, 11, 12]):
        cache.serve(*prompt)
    assert cache.kept(1, 2) == 2


def use(cache: Served, times: int, apart: float, *prompt: int) -> None:
    """Serve the prompt so many times; the pauses between the starts are `apart` seconds."""
    for _ in range(times):
        start = cache.now
        cache.serve(*prompt)
        cache.now = start + apart


def vip_kept(eviction: EvictionPolicy) -> int:
    """Tokens of a VIP that are left after ten bursts and 40 prefixes of pressure, half evicted."""
    size, prompts = 16, 51
    cache = Served(eviction, size * (prompts + 1))
    vip = range(1000, 1000 + size)
    use(cache, 4, 1.0, *vip)
    for burst in range(10):
        use(cache, 100, 0.0001, *range(2000 + 100 * burst, 2000 + 100 * burst + size))
    for pressure in range(40):
        use(cache, 2, 0.0001, *range(5000 + 100 * pressure, 5000 + 100 * pressure + size))
    cache.serve(*range(-size * (prompts // 2 + 1), 0))
    return cache.kept(*vip)


def test_a_burst_is_one_use() -> None:  # row 63
    assert vip_kept(registry.eviction("slru")) == 0
    assert vip_kept(registry.eviction("slru_decay")) == 16


def old_and_new(eviction: EvictionPolicy) -> tuple[int, int]:
    """OLD was used six times and then not for 150 s; NEW once, among 40 fresh prefixes."""
    cache = Served(eviction, 16 * 42 + 1)
    use(cache, 6, 1.0, *range(1000, 1016))
    cache.now += 150.0
    use(cache, 1, 1.0, *range(2000, 2016))
    for fresh in range(40):
        use(cache, 1, 1.0, *range(5000 + 100 * fresh, 5016 + 100 * fresh))
    cache.serve(*range(-16, 0))
    return cache.kept(*range(1000, 1016)), cache.kept(*range(2000, 2016))


def test_protection_fades() -> None:  # row 64
    old, new = old_and_new(registry.eviction("slru"))
    assert (old, new) == (16, 1)
    old, new = old_and_new(registry.eviction("slru_decay"))
    assert (old, new) == (1, 16)


def test_belady_needs_to_be_told_the_future() -> None:
    with pytest.raises(ValueError, match="only where the future is known"):
        Served(registry.eviction("belady"), 6)


def test_belady_refuses_what_was_not_foretold() -> None:
    eviction = registry.eviction("belady")
    eviction.on_future([])
    with pytest.raises(ValueError, match="request 1: Belady knows only what on_future foretold"):
        Served(eviction, 6).serve(1, 2)


def test_look_ahead_keeps_what_the_queue_wants() -> None:
    cache = Served(registry.eviction("look_ahead"), 6)
    cache.serve(1, 2, 3)
    cache.serve(4, 5, 6)
    cache.add(7, 8, 9)
    wanted = cache.add(1, 2, 3, 5)
    cache.run()
    # LRU drops [1, 2, 3] for [7, 8, 9], and the sequence behind finds nothing.
    assert wanted.num_cached_tokens == 3


def test_look_ahead_gives_up_what_is_wanted_last() -> None:
    cache = Served(registry.eviction("look_ahead"), 6)
    cache.serve(1, 2, 3)
    cache.serve(4, 5, 6)
    cache.add(7, 8)
    sooner, later = cache.add(4, 5, 6, 9), cache.add(1, 2, 3, 9)
    cache.run()
    # [7, 8] takes 3 and 2; then 9 takes 8, since nobody wants it, and the last one 7 and more.
    assert (sooner.num_cached_tokens, later.num_cached_tokens) == (3, 1)
