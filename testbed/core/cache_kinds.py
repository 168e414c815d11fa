"""The prefix cache that a config names."""

from __future__ import annotations

from testbed.core.block_hash_cache import BlockHashCache
from testbed.core.config import CacheConfig
from testbed.core.page_pool import PagePool
from testbed.core.policy import EvictionPolicy
from testbed.core.prefix_cache import CacheListener, NoCache, PrefixCache
from testbed.core.radix_cache import RadixCache


def build_cache(
    config: CacheConfig, eviction: EvictionPolicy, listener: CacheListener
) -> PrefixCache:
    """The prefix cache that the config names, over a pool of its own."""
    if config.kind == "block_hash":
        return BlockHashCache(config.num_pages, config.page_size, listener)
    pool = PagePool(config.num_pages)
    if config.kind == "none":
        return NoCache(pool, config.page_size)
    return RadixCache(
        pool, config.page_size, eviction, listener, config.granularity, config.split_touch
    )
