"""Eviction policies: which unlocked leaf of the radix tree leaves first."""
