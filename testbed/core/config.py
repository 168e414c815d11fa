"""The switches of the shared semantics, as frozen dataclasses, and the presets that set them."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Literal


@dataclass(frozen=True)
class CacheConfig:
    """How KV pages are kept and shared on one replica.

    num_pages: the pool, shared by the cache and the running sequences. kind: `radix` (a tree over
    token prefixes), `block_hash` (vLLM's hashed blocks and free queue; its eviction order is fixed)
    or `none`. granularity: evict exactly the pages that are short from the tail of leaves, or whole
    nodes as SGLang does. split_touch: whether the unmatched half of a split node counts as used too
    (SGLang). touch_on_peek: whether being matched while waiting counts as use (SGLang).
    insert_at: pages become shareable at the end of the step that computes them (`commit`) or as
    soon as it is scheduled (`schedule`, vLLM). cache_outputs: keep generated tokens when a sequence
    finishes.
    """

    num_pages: int
    page_size: int = 16
    kind: Literal["radix", "block_hash", "none"] = "radix"
    granularity: Literal["page", "node"] = "page"
    split_touch: Literal["ideal", "sglang"] = "ideal"
    touch_on_peek: bool = False
    insert_at: Literal["commit", "schedule"] = "commit"
    cache_outputs: bool = True

    def __post_init__(self) -> None:
        _at_least(self, "num_pages", 1)
        if self.num_pages >= 2**31:
            raise ValueError(f"num_pages={self.num_pages}: less than 2**31 is needed")
        _at_least(self, "page_size", 1)
        _one_of(self, "kind", ("radix", "block_hash", "none"))
        _one_of(self, "granularity", ("page", "node"))
        _one_of(self, "split_touch", ("ideal", "sglang"))
        _one_of(self, "insert_at", ("commit", "schedule"))


@dataclass(frozen=True)
class SchedulerConfig:
    """How sequences are admitted, batched and preempted on one replica.

    chunk_size: prompt tokens a step may compute, decode rows of a mixed batch taken off; 0 computes
    every prompt whole, up to max_prefill_tokens a step (a longer prompt runs alone).
    batching: `mixed` adds prefill chunks to the decodes; `prefill_first` runs waiting prefills
    alone and decodes only when there are none.
    reserve: what admission keeps free for running sequences: their `full` declared output, a
    decaying `ratio` of it (SGLang's new_token_ratio), or the worst future `peak` (LightLLM's
    formula, as in the VTC artifact). With `ratio`, reserve_newcomer says whether a newcomer must
    find room for its own output too (SGLang) or for its prompt alone (vLLM). victim: who is
    preempted when decoding runs out of memory: the one admitted last, or who has generated least,
    of all or of the lowest (or highest) Request.priority.
    min_computed_tokens: tokens of a fully cached prompt that are computed again for their logits;
    0 models a system that keeps them (exact serial theory), simulation only.
    """

    max_running: int = 256
    chunk_size: int = 8192
    max_prefill_tokens: int = 16384
    batching: Literal["mixed", "prefill_first"] = "mixed"
    reserve: Literal["full", "ratio", "peak"] = "full"
    reserve_ratio: float = 0.7
    reserve_ratio_floor: float = 0.098
    reserve_decay_steps: int = 600
    reserve_newcomer: bool = True
    victim: Literal["last_admitted", "fewest_generated", "lowest_priority", "highest_priority"] = (
        "last_admitted"
    )
    min_computed_tokens: int = 1

    def __post_init__(self) -> None:
        _at_least(self, "max_running", 1)
        _at_least(self, "chunk_size", 0)
        _at_least(self, "max_prefill_tokens", 1)
        _one_of(self, "batching", ("mixed", "prefill_first"))
        _one_of(self, "reserve", ("full", "ratio", "peak"))
        _one_of(
            self,
            "victim",
            ("last_admitted", "fewest_generated", "lowest_priority", "highest_priority"),
        )
        _one_of(self, "min_computed_tokens", (0, 1))
        _at_least(self, "reserve_decay_steps", 1)
        if not 0 <= self.reserve_ratio_floor <= self.reserve_ratio <= 1:
            raise ValueError(
                f"reserve_ratio_floor={self.reserve_ratio_floor}, reserve_ratio="
                f"{self.reserve_ratio}: 0 <= reserve_ratio_floor <= reserve_ratio <= 1 is needed"
            )

    def check_page_size(self, page_size: int) -> None:
        """Raise ValueError if a chunk may be too short to hold a page: it would never be run."""
        for name in ("chunk_size", "max_prefill_tokens") if self.chunk_size else ():
            if getattr(self, name) < page_size:
                raise ValueError(
                    f"{name}={getattr(self, name)}: at least page_size={page_size} is needed"
                )


PRESETS: dict[str, dict[str, Any]] = {
    "ideal": {},
    "sglang": {
        "page_size": 1,
        "granularity": "node",
        "split_touch": "sglang",
        "touch_on_peek": True,
        "insert_at": "commit",
        "batching": "prefill_first",
        "reserve": "ratio",
        "victim": "fewest_generated",
    },
    "vllm": {
        "kind": "block_hash",
        "page_size": 16,
        "insert_at": "schedule",
        "batching": "mixed",
        "reserve": "ratio",
        "reserve_ratio": 0.0,
        "reserve_ratio_floor": 0.0,
        "reserve_newcomer": False,
        "victim": "last_admitted",
    },
}
"""semantics=NAME: switches of CacheConfig and SchedulerConfig by field name, over the defaults."""


def with_preset(
    semantics: str, cache: CacheConfig, scheduler: SchedulerConfig
) -> tuple[CacheConfig, SchedulerConfig]:
    """The two configs with the preset's switches set; the pool keeps its size in tokens."""
    if semantics not in PRESETS:
        raise ValueError(f"semantics={semantics!r}: one of {', '.join(PRESETS)} is needed")
    switches = PRESETS[semantics]
    in_cache = {f.name for f in fields(CacheConfig)} & switches.keys()
    in_scheduler = {f.name for f in fields(SchedulerConfig)} & switches.keys()
    page_size = switches.get("page_size", cache.page_size)
    num_pages = cache.num_pages * cache.page_size // page_size
    return (
        replace(cache, num_pages=num_pages, **{name: switches[name] for name in in_cache}),
        replace(scheduler, **{name: switches[name] for name in in_scheduler}),
    )


def _at_least(config: Any, name: str, least: int) -> None:
    value = getattr(config, name)
    if value < least:
        raise ValueError(f"{name}={value}: at least {least} is needed")


def _one_of(config: Any, name: str, accepted: tuple[Any, ...]) -> None:
    value = getattr(config, name)
    if value not in accepted:
        raise ValueError(f"{name}={value!r}: one of {', '.join(map(str, accepted))} is needed")
