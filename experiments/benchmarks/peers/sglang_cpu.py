"""SGLang 0.5.23's radix cache over its Rust tree core (the server's default), and its schedule
policies, without a GPU.

The KV allocator is a counter, so that times are the tree's own. `sglang/__init__.py` would import
the language front end and is passed over; nothing of the tree or the policies is changed.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import types
from array import array
from typing import Any

import stand_ins

os.environ["TORCHDYNAMO_DISABLE"] = "1"

import torch

torch.set_num_threads(1)
stand_ins.install(
    "sglang",
    absent=[
        f"sglang.srt.{package}"
        for package in (
            "configs",
            "distributed",
            "function_call",
            "layers",
            "model_executor",
            "parser",
        )
    ],
)
_spec = importlib.util.find_spec("sglang")
assert _spec is not None and _spec.submodule_search_locations is not None
_package = types.ModuleType("sglang")
_package.__path__ = list(_spec.submodule_search_locations)
sys.modules["sglang"] = _package

from sglang.srt.managers import schedule_policy  # type: ignore[import-not-found]
from sglang.srt.mem_cache.base_prefix_cache import (  # type: ignore[import-not-found]
    EvictParams,
    InsertParams,
    MatchPrefixParams,
)
from sglang.srt.mem_cache.cache_init_params import (  # type: ignore[import-not-found]
    CacheInitParams,
)
from sglang.srt.mem_cache.radix_cache import RadixKey  # type: ignore[import-not-found]
from sglang.srt.mem_cache.unified_cache.component_type import (  # type: ignore[import-not-found]
    ComponentType,
)
from sglang.srt.mem_cache.unified_radix_cache import (  # type: ignore[import-not-found]
    UnifiedRadixCache,
)

__all__ = ["Tree", "schedule_policy"]


class CountingAllocator:
    """What the cache asks of a KV allocator: how many slots are in use."""

    device = "cpu"

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self.used = 0

    def free(self, slots: Any) -> None:
        """Slots come back."""
        self.used -= len(slots)

    def free_segment(self, slots: Any, start_pos: int = 0) -> None:
        """Slots come back."""
        self.used -= len(slots)


class RequestPool:
    """Nothing is asked of it but where it lives."""

    device = "cpu"


class Tree:
    """The cache with a capacity in tokens. The calls that a benchmark times are the cache's own."""

    def __init__(self, page_size: int, num_tokens: int) -> None:
        self.page_size = page_size
        self.num_tokens = num_tokens
        self.allocator = CountingAllocator(page_size)
        self.cache = UnifiedRadixCache(
            CacheInitParams(
                disable=False,
                req_to_token_pool=RequestPool(),
                token_to_kv_pool_allocator=self.allocator,
                page_size=page_size,
                tree_components=(ComponentType.FULL,),
                tree_core_backend="rust",
            )
        )

    def serve(self, prompt: array[int], matchable: int, clock: Any) -> tuple[int, list[float]]:
        """One request from match to unlock: matched tokens, and the clock around each call.

        Seven differences: match, lock, read the slots of the path, evict, (untimed preparation of
        keys and slots), insert, unlock.
        """
        cache, allocator = self.cache, self.allocator
        aligned = len(prompt) - len(prompt) % self.page_size
        key = MatchPrefixParams(key=RadixKey(prompt[:matchable]))
        times = [clock()]
        match = cache.match_prefix(key)
        times.append(clock())
        lock = cache.lock(match.last_device_node)
        times.append(clock())
        path = cache.path_device_indices(match.last_device_node)
        times.append(clock())
        matched: int = match.device_prefix_len
        fresh = max(0, aligned - matched)
        short = allocator.used + fresh - self.num_tokens
        if short > 0:
            cache.evict(EvictParams(num_tokens=short))
        times.append(clock())
        allocator.used += fresh
        slots = torch.arange(fresh, dtype=torch.int64)
        insertion = InsertParams(
            key=RadixKey(prompt[:aligned]),
            value=torch.cat([path, slots]),
            prev_prefix_len=matched,
        )
        times.append(clock())
        cache.insert(insertion)
        times.append(clock())
        cache.unlock(lock)
        times.append(clock())
        return matched, times
