"""SIEVE and S3-FIFO against plain lists where the tree is flat, and by hand where it is not."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from testbed.policies.eviction.lazy_promotion import S3Fifo, Sieve
from tests.cases.serial import build_scheduler, serve_in_order
from tests.core.building import make_request
from tests.policies.evicting import Served


def sieve(keys: list[int], capacity: int) -> list[bool]:
    """Hits of the rule as the paper states it: oldest first in the list."""
    queue: list[int] = []
    visited: dict[int, bool] = {}
    hand = 0
    hits = []
    for key in keys:
        hits.append(key in visited)
        if key in visited:
            visited[key] = True
            continue
        if len(queue) == capacity:
            while visited[queue[hand % len(queue)]]:
                hand %= len(queue)
                visited[queue[hand]] = False
                hand += 1
            hand %= len(queue)
            del visited[queue.pop(hand)]
            # Past the newest: what comes now is not what the hand stopped at.
            hand = 0 if hand == len(queue) else hand
        queue.append(key)
        visited[key] = False
    return hits


def s3_fifo(keys: list[int], capacity: int) -> list[bool]:
    """Hits of libCacheSim's variant with its defaults, over lists."""
    small: list[int] = []
    main: list[int] = []
    ghost: list[int] = []
    uses: dict[int, int] = {}
    small_cap, ghost_cap = int(capacity * 0.1), int(capacity * 0.9)
    evicted_before = False
    hits = []
    for key in keys:
        hits.append(key in uses)
        if key in uses:
            uses[key] += 1
            continue
        remembered = key in ghost
        if remembered:
            ghost.remove(key)
        while len(small) + len(main) == capacity:
            evicted_before = True
            if len(main) > capacity - small_cap or not small:
                while uses[main[0]]:
                    uses[main[0]] = min(uses[main[0]], 3) - 1
                    main.append(main.pop(0))
                del uses[main.pop(0)]
                continue
            while small:
                oldest = small.pop(0)
                if uses[oldest] >= 2:
                    uses[oldest] = 0
                    main.append(oldest)
                    continue
                del uses[oldest]
                ghost = [*ghost, oldest][-ghost_cap:]
                break
        fills_main = not evicted_before and len(small) >= small_cap
        (main if remembered or fills_main else small).append(key)
        uses[key] = 0
    return hits


accesses = st.lists(st.integers(0, 40).map(lambda n: n * n // 40), max_size=250)


def found(policy: Sieve | S3Fifo, keys: list[int], capacity: int) -> list[bool]:
    scheduler = build_scheduler(capacity, eviction=policy)
    requests = [make_request(number, [key]) for number, key in enumerate(keys)]
    return [bool(hit) for hit in serve_in_order(scheduler, requests).hits]


def check(
    rule: Callable[[list[int], int], list[bool]],
    policy: Sieve | S3Fifo,
    keys: list[int],
    capacity: int,
) -> None:
    assert found(policy, keys, capacity) == rule(keys, capacity)


@given(accesses, st.integers(1, 12))
def test_sieve_on_flat_prompts(keys: list[int], capacity: int) -> None:
    check(sieve, Sieve(), keys, capacity)


@given(accesses, st.integers(10, 24))
def test_s3_fifo_on_flat_prompts(keys: list[int], capacity: int) -> None:
    check(s3_fifo, S3Fifo(), keys, capacity)


def test_the_hand_of_sieve_passes_inner_nodes() -> None:
    cache = Served(Sieve(), 6)
    cache.serve(1, 2)
    cache.serve(1, 2, 3)
    cache.serve(4, 5, 6)
    # [1, 2] is marked and inner: it loses its mark, [3] goes and leaves the hand at [4, 5, 6].
    cache.serve(7)
    assert (cache.kept(1, 2, 3), cache.kept(4, 5, 6)) == (2, 3)
    # The hand stands at [4, 5, 6], which leaves page by page.
    cache.serve(8, 9)
    assert (cache.kept(1, 2), cache.kept(4, 5, 6), cache.kept(7)) == (2, 1, 1)


def test_half_of_a_split_is_unmarked_unless_it_is_used() -> None:
    cache = Served(Sieve(), 6)
    cache.serve(1, 2, 3)
    cache.serve(1, 9)
    cache.serve(4, 5)
    # [2, 3] is the oldest leaf without a mark; it stands before [1], which is marked.
    cache.serve(6, 7)
    assert (cache.kept(1, 2, 3), cache.kept(1, 9), cache.kept(4, 5)) == (1, 2, 2)


def test_s3_fifo_remembers_a_prefix_that_left_the_small_queue() -> None:
    cache = Served(S3Fifo(small_share=0.5), 8)
    cache.serve(1, 2, 3, 4)
    cache.serve(20, 21, 22, 23)
    # The first fills the small queue, the second goes to the main one.
    cache.serve(5, 6, 7, 8)
    assert (cache.kept(1), cache.kept(20, 21, 22, 23)) == (0, 4)
    # It is known by where it begins, though it goes on otherwise: it enters the main queue, which
    # is over its share then, so that the next one takes from there.
    cache.serve(1, 2, 9)
    assert (cache.kept(5, 6, 7, 8), cache.kept(1, 2, 9)) == (1, 3)
    cache.serve(30, 31)
    assert (cache.kept(5), cache.kept(20, 21, 22, 23), cache.kept(1, 2, 9)) == (1, 2, 3)
