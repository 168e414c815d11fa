"""Clairvoyant service that need not store what it serves, against every choice there is."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from testbed.metrics.bounds import clairvoyant_bound
from testbed.metrics.prompt_paths import PromptPaths, block_paths


def single_blocks(ids: list[int]) -> PromptPaths:
    return block_paths([[i] for i in ids], [1] * len(ids), 1)


def most_hits(ids: list[int], capacity: int) -> int:
    """By trying all that can be kept after each request: any of the cache and the request's own."""
    states = {frozenset[int](): 0}
    for one in ids:
        following: dict[frozenset[int], int] = {}
        for cache, hits in states.items():
            held = cache | {one}
            for size in range(min(capacity, len(held)) + 1):
                for kept in combinations(sorted(held), size):
                    state = frozenset(kept)
                    best = max(following.get(state, 0), hits + (one in cache))
                    following[state] = best
        states = following
    return max(states.values())


def test_what_is_never_used_again_does_not_displace_what_is() -> None:
    paths = single_blocks([0, 1, 0])
    assert clairvoyant_bound(paths, 1).hit_tokens == 0
    assert clairvoyant_bound(paths, 1, may_bypass=True).hit_tokens == 1


@given(st.lists(st.integers(0, 4), min_size=1, max_size=9), st.integers(1, 3))
def test_it_is_the_best_of_all_choices(ids: list[int], capacity: int) -> None:
    bound = clairvoyant_bound(single_blocks(ids), capacity, may_bypass=True)
    assert bound.hit_tokens == most_hits(ids, capacity)
