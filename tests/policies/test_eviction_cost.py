"""Worth by use and cost, worked out by hand."""

from __future__ import annotations

import pytest

from testbed.core.cost import CostModel
from testbed.policies.eviction.cost import Gdsf, Marconi, Pgdsf
from testbed.policies.eviction.next_turn import ReuseProbability, TailOptimizedLru
from tests.policies.evicting import Served

PAIRS = CostModel(lambda shape: float(shape.prefill_pairs), flops_per_pair=1.0)
"""A second for each (query, key) pair; FLOPs grow with the depth."""


def test_gdsf_weighs_uses_by_size_and_ages() -> None:
    cache = Served(Gdsf(), 6)
    cache.serve(1, 2, 3, 4)
    cache.serve(5, 6)
    cache.serve(7, 8)
    # 1/4 goes before 1/2, from its tail.
    assert (cache.kept(1, 2, 3, 4), cache.kept(5, 6)) == (2, 2)
    cache.serve(9, 10)
    # The rest of it went: the clock is 1/4 and [9, 10] ranks 3/4.
    assert cache.kept(1) == 0
    cache.serve(11, 12)
    assert (cache.kept(5, 6), cache.kept(7, 8), cache.kept(9, 10)) == (0, 2, 2)
    # The clock is 1/2 now: a use raises [7, 8] from 1/2 to 1/2 + 2/2.
    assert cache.serve(7, 8, 13) == 2
    assert (cache.kept(7, 8, 13), cache.kept(9, 10), cache.kept(11, 12)) == (3, 1, 2)


def test_pgdsf_weighs_uses_by_the_price_of_a_token() -> None:
    cache = Served(Pgdsf(), 6, cost=PAIRS)
    cache.serve(1, 2, 3, 4)
    cache.serve(5, 6)
    # 10 pairs for 4 tokens, 3 for 2: the newer one is cheaper by the token.
    cache.serve(7, 8)
    assert (cache.kept(1, 2, 3, 4), cache.kept(5, 6)) == (4, 0)
    # The clock is 1.5: [7, 8] ranks 1.5 + 1.5, so that the long one is next with 2.5.
    cache.serve(9, 10)
    assert (cache.kept(1, 2, 3, 4), cache.kept(7, 8)) == (2, 2)


@pytest.mark.parametrize(("alpha", "left"), [(0.0, (0, 2)), (0.5, (0, 2)), (2.0, (2, 0))])
def test_marconi_adds_what_a_token_saves_to_recency(alpha: float, left: tuple[int, int]) -> None:
    cache = Served(Marconi(alpha), 6, cost=PAIRS)
    cache.serve(1, 2, 3, 4)
    cache.serve(5, 6)
    # Recency 0 and 1, FLOPs of a token 3.5 and 2.5, that is 1 and 0.
    cache.serve(*range(20, 24) if alpha < 1 else (20, 21))
    assert (cache.kept(1, 2, 3, 4) // 2, cache.kept(5, 6)) == left


def test_tail_lru_spares_what_the_next_turn_does_not_need() -> None:
    cache = Served(TailOptimizedLru(threshold=2), 9)
    cache.serve(1, 2, 3, 4, 5, 6)
    cache.serve(11, 12, 13)
    # Turns of up to 2 computed tokens: 4 of the first and 1 of the second are needed.
    cache.serve(21, 22, 23, 24)
    assert (cache.kept(1, 2, 3, 4, 5, 6), cache.kept(11, 12, 13)) == (4, 1)
    # Nothing of them can be spared any more: the lengths do not shrink. The third has 2 to spare.
    cache.serve(31, 32)
    assert (cache.kept(1, 2, 3, 4), cache.kept(11), cache.kept(21, 22, 23, 24)) == (4, 1, 2)
    # Conversations of 2 tokens need none of them.
    cache.serve(41, 42)
    assert (cache.kept(1, 2, 3, 4), cache.kept(31, 32)) == (4, 0)
    # When nothing is left to spare, it is LRU.
    cache.serve(51, 52, 53)
    assert (cache.kept(1, 2, 3, 4), cache.kept(41, 42)) == (3, 0)


def test_tail_lru_without_a_threshold_is_lru() -> None:
    cache = Served(TailOptimizedLru(), 6)
    cache.serve(1, 2, 3)
    cache.serve(4, 5, 6)
    cache.serve(7, 8)
    assert (cache.kept(1, 2, 3), cache.kept(4, 5, 6)) == (1, 3)


def test_reuse_probability_knows_who_comes_back_late() -> None:
    cache = Served(ReuseProbability(prior_seconds=10.0, rate=1.0), 9)
    for now in (0.0, 8.0):
        cache.now = now
        cache.serve(1, 2, 3, 9, client="slow")
    for now in (13.0, 14.0, 15.0):
        cache.now = now
        cache.serve(4, 5, 6, 9, client="quick")
    # Their last tokens were computed anew at 9 and 16, after intervals of 8 and 1 seconds. At 20,
    # within 10 seconds: exp(-11 / 8) - exp(-21 / 8) = 0.18 and exp(-4) - exp(-14) = 0.02, of which
    # no more than half is lost to the shares of uses that were followed by another.
    cache.now = 20.0
    cache.serve(7, 8, 10, client="new")
    assert (cache.kept(1, 2, 3, 9), cache.kept(4, 5, 6, 9)) == (4, 2)


def test_reuse_probability_keeps_what_is_shallow() -> None:
    cache = Served(ReuseProbability(), 5)
    for prompt in ([4, 5], [1, 2, 3]):
        cache.now = 0.0
        cache.serve(*prompt)
    cache.serve(7, 8)
    assert (cache.kept(4, 5), cache.kept(1, 2, 3)) == (2, 1)
