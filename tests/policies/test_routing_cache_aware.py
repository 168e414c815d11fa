"""SGLang's cache-aware gateway: the tree, the ratio, and the switch to the shortest queue."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.core.views import RequestView
from testbed.policies.routing.approximate_tree import ApproximateTree
from testbed.policies.routing.cache_aware import CacheAware
from tests.core.building import make_request
from tests.policies.fleet import Fleet

TEN = list(range(10))


def test_the_ratio_must_exceed_the_threshold() -> None:
    fleet = Fleet(CacheAware(cache_threshold=0.5), 2)
    assert fleet.send(TEN) == 0
    # 5 of 10 tokens are known: not more than half. Replica 1 has less in flight.
    assert fleet.send([*TEN[:5], 91, 92, 93, 94, 95]) == 1
    # 6 of 10, which replica 0 alone was sent.
    assert fleet.send([*TEN[:6], 81, 82, 83, 84]) == 0
    # The first five were last sent to replica 0.
    assert fleet.send(TEN[:5]) == 0


def test_nothing_known_goes_to_the_least_loaded_even_with_a_threshold_of_zero() -> None:
    fleet = Fleet(CacheAware(cache_threshold=0.0), 3)
    assert [fleet.send([n] * 4) for n in range(4)] == [0, 1, 2, 0]
    assert fleet.send([2, 7, 7, 7]) == 2
    fleet.finish(1)
    assert fleet.send([9]) == 1


def imbalanced(first: int, second: int, **fields: Any) -> Fleet:
    """Two replicas with so many requests in flight; the prompt TEN is known at replica 0."""
    fleet = Fleet(CacheAware(cache_threshold=0.3, **fields), 2)
    fleet.send(TEN)
    fleet.router.in_flight[:] = [first, second]  # type: ignore[attr-defined]
    return fleet


@pytest.mark.parametrize(
    ("first", "second", "home"),
    [
        (8, 4, 0),  # 8 - 4 is not above 4
        (9, 4, 1),  # 5 is above 4, and 9 above 2 * 4
        (10, 5, 0),  # 5 is above 4, but 10 not above 2 * 5
        (11, 5, 1),
        (5, 0, 1),
        (4, 0, 0),
    ],
)
def test_both_thresholds_must_be_exceeded(first: int, second: int, home: int) -> None:
    fleet = imbalanced(first, second, balance_abs_threshold=4, balance_rel_threshold=2.0)
    assert fleet.send(TEN) == home


def test_the_tree_learns_in_imbalance_too() -> None:
    fleet = imbalanced(9, 4, balance_abs_threshold=4, balance_rel_threshold=2.0)
    assert fleet.send(TEN) == 1
    fleet.router.in_flight[:] = [4, 5]  # type: ignore[attr-defined]
    # Balanced again: replica 1 was sent it last.
    assert fleet.send(TEN) == 1


def test_tokens_match_by_whole_pages_of_16() -> None:
    prompt = list(range(31))
    text, tokens = (Fleet(CacheAware(cache_threshold=0.5, unit=u), 2) for u in ("text", "tokens"))
    for fleet in (text, tokens):
        assert fleet.send(prompt) == 0
    # 20 of 31 tokens are known; as pages only 16, still more than half of it.
    assert tokens.send([*prompt[:20], *range(100, 111)]) == 0
    # 20 of 39: 16 pages' tokens are less than half.
    longer = [*prompt[:20], *range(200, 219)]
    assert text.send(longer) == 0
    assert tokens.send(longer) == 1


def test_the_tree_is_cut_at_the_interval_least_recently_used_first() -> None:
    fleet = Fleet(CacheAware(max_tree_size=10, eviction_interval=5.0), 1)
    tree = fleet.router._tree  # type: ignore[attr-defined]
    fleet.send([1] * 6)
    fleet.send([2] * 6)
    fleet.send([1] * 6, now=4.0)
    assert tree.sizes == [12]
    fleet.send([3], now=5.0)
    # The twos went; the ones were used after them.
    assert tree.sizes == [7]
    assert tree.longest(RequestView(make_request(9, [2] * 6))) == (0, None)
    assert tree.longest(RequestView(make_request(9, [1] * 6)))[0] == 6


def test_a_shared_prefix_outlives_the_leaf_of_one_replica() -> None:
    tree = ApproximateTree(2, 1)

    def view(prompt: list[int]) -> RequestView:
        return RequestView(make_request(0, prompt))

    tree.note(view([1, 2, 3]), 0)
    tree.note(view([1, 2, 4]), 1)
    assert tree.sizes == [3, 3]
    tree.note(view([1, 2, 4]), 0)
    assert tree.sizes == [4, 3]
    tree.shrink(3)
    # Replica 0 used [3] before [4].
    assert tree.sizes == [3, 3]
    assert tree.longest(view([1, 2, 3]))[0] == 2
    tree.shrink(0)
    assert (tree.sizes, tree.num_nodes) == ([0, 0], 0)


@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(0, 1), min_size=1, max_size=6),
            st.integers(0, 2),
            st.none() | st.integers(0, 8),
        ),
        max_size=25,
    )
)
def test_sizes_count_the_distinct_prefixes_noted(
    moves: list[tuple[list[int], int, int | None]],
) -> None:
    tree = ApproximateTree(3, 1)
    for prompt, replica, limit in moves:
        tree.note(RequestView(make_request(0, prompt)), replica)
        if limit is not None:
            tree.shrink(limit)
            assert max(tree.sizes) <= limit
        held = [0, 0, 0]
        nodes = [child for root in tree._roots.values() for child in root.children.values()]
        while nodes:
            node = nodes.pop()
            nodes += node.children.values()
            assert node.state
            for user in node.state:
                held[user] += node.end - node.start
            for child in node.children.values():
                assert child.state.keys() <= node.state.keys()
        assert held == tree.sizes


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"cache_threshold": 1.5}, "cache_threshold=1.5: 0 to 1"),
        ({"balance_abs_threshold": -1}, "balance_abs_threshold=-1: at least 0"),
        ({"balance_rel_threshold": 0.5}, "balance_rel_threshold=0.5: at least 1"),
        ({"unit": "bytes"}, "unit='bytes': one of text, tokens"),
        ({"max_tree_size": 0}, "max_tree_size=0: at least 1"),
        ({"eviction_interval": 0.0}, "eviction_interval=0.0: seconds above 0"),
    ],
)
def test_bad_parameters_are_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CacheAware(**fields)
