"""Depth-first orders: of the waiting requests' own trie, and of the cached tree."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.core.policy import SchedulingPolicy
from testbed.core.views import NodeView, SchedulerView, SequenceView
from testbed.policies.scheduling.depth_first import Dfs, DfsWeight
from tests.core.stepping import Stepper
from tests.policies.auditing import Audited, order
from tests.sim.worlds import World, worlds


def order_of(
    policy: SchedulingPolicy,
    prompts: list[list[int]],
    cached: list[list[int]],
    namespaces: str = "",
    **switches: Any,
) -> list[int]:
    """The order of waiting prompts, as places in the list, after the cached ones were served."""
    stepper = Stepper(policy=policy, **switches)
    for prompt in cached:
        stepper.add(prompt)
        stepper.run()
    first = len(cached)
    for place, prompt in enumerate(prompts):
        stepper.add(prompt, namespace=namespaces[place : place + 1])
    return [id - first for id in order(policy, stepper.scheduler._view)]


def test_dfs_is_the_preorder_of_the_waiting_trie() -> None:
    prompts = [[1, 2, 3], [4], [1, 2], [1, 5], [4, 6], [1, 2, 7], [1]]
    assert order_of(Dfs("skip"), prompts, []) == [6, 2, 0, 5, 3, 1, 4]


def test_dfs_asks_nothing_of_the_cache() -> None:
    prompts = [[9, 9], [1, 2, 3], [9, 8]]
    for cached in ([], [[1, 2, 3, 4]]):
        assert order_of(Dfs("skip"), prompts, cached) == [0, 2, 1]


def test_equal_prompts_go_by_arrival_and_namespaces_apart() -> None:
    prompts = [[1, 2], [1, 3], [1, 2], [1, 2]]
    assert order_of(Dfs("skip"), prompts, [], namespaces="abab") == [0, 2, 1, 3]


def preorder(prompts: list[tuple[str, tuple[int, ...]]], depth: int, among: list[int]) -> list[int]:
    """Those that end here, then their groups by next token, each group by its first arrival."""
    here = [n for n in among if len(prompts[n][1]) == depth]
    groups: dict[int, list[int]] = {}
    for n in among:
        if len(prompts[n][1]) > depth:
            groups.setdefault(prompts[n][1][depth], []).append(n)
    return here + [n for group in groups.values() for n in preorder(prompts, depth + 1, group)]


@given(
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), min_size=1, max_size=12),
    st.text("ab", min_size=12, max_size=12),
)
def test_dfs_is_the_preorder_by_definition(prompts: list[list[int]], namespaces: str) -> None:
    named = [(namespaces[n], tuple(prompt)) for n, prompt in enumerate(prompts)]
    expected = []
    for namespace in dict.fromkeys(name for name, _ in named):
        among = [n for n, (name, _) in enumerate(named) if name == namespace]
        expected += preorder(named, 0, among)
    assert order_of(Dfs("skip"), prompts, [], namespaces) == expected


class DepthFirst(Audited):
    """Whatever shares a prefix stands together at the start of each pass, shorter prompts first."""

    def candidates(self, view: SchedulerView) -> Any:
        waiting = {s.id: (s.namespace, *s.tokens.tolist()) for s in view.waiting}
        proposed = [waiting[id] for id in order(self.policy, view)]
        assert sorted(proposed) == sorted(waiting.values())
        for length in range(1, max(map(len, proposed)) + 1):
            prefixes = [prompt[:length] for prompt in proposed if len(prompt) >= length]
            runs = [prefix for prefix, _ in groupby(prefixes)]
            assert len(runs) == len(set(runs))
        for number, prompt in enumerate(proposed):
            assert not any(prompt == p[: len(prompt)] != p for p in proposed[:number])
        return self.policy.candidates(view)


@settings(max_examples=100)
@given(worlds(replicas=1))
def test_dfs_stays_depth_first_while_requests_come_and_go(world: World) -> None:
    world.run(policy=lambda: DepthFirst(Dfs("skip"), lambda view, left: left[0]))


def test_heavier_subtrees_go_first_and_the_root_s_own_last() -> None:  # row 99
    # Branches 10 (one request), 10-20 (two), 7 (one), and one that matches nothing.
    cached = [[10, 20], [7]]
    prompts = [[7, 1], [99], [10, 3], [10, 20, 1], [10, 20, 2]]
    assert order_of(DfsWeight("skip"), prompts, cached) == [3, 4, 2, 0, 1]


def test_a_child_s_own_go_before_its_parent_s() -> None:  # rows 100, 101
    cached = [[1, 2], [1, 2, 3]]
    prompts = [[1, 2, 9], [1, 2, 3, 9]]
    assert order_of(DfsWeight("skip"), prompts, cached) == [1, 0]
    # Inside an edge, who matches further would be further down.
    assert order_of(DfsWeight("skip"), [[1, 9], [1, 2, 9], [1, 8]], [[1, 2, 3]]) == [1, 0, 2]


def test_leaves_b_a2_a1_a1_and_the_branch_itself() -> None:  # row 101
    cached = [[1, 2], [1, 3], [5]]
    leaves = {"B": [5, 9], "A2": [1, 3, 9], "A1": [1, 2, 9], "A": [1, 8]}
    prompts = [leaves[name] for name in ("B", "A2", "A1", "A1", "A")]
    assert order_of(DfsWeight("skip"), prompts, cached) == [2, 3, 1, 4, 0]
    assert order_of(DfsWeight("skip"), [leaves["B"], leaves["A2"]], cached) == [1, 0]


def test_cold_and_warm_as_lpm() -> None:  # row 95
    prompts = [[500, 501], [*range(50), 900], [*range(99), 900], [*range(10), 900]]
    assert order_of(DfsWeight("skip"), prompts, [list(range(100))]) == [2, 1, 3, 0]


def test_equal_weights_go_by_insertion() -> None:
    cached = [[3, 0], [1, 0], [2, 0]]
    prompts = [[2, 0, 9], [1, 0, 9], [3, 0, 9]]
    assert order_of(DfsWeight("skip"), prompts, cached) == [2, 1, 0]


def test_equal_namespaces_go_by_first_use() -> None:
    prompts = [[1, 2], [3, 4], [5, 6]]
    assert order_of(DfsWeight("skip"), prompts, [], namespaces="abc") == [0, 1, 2]


@pytest.mark.parametrize("kind", ["block_hash", "none"])
def test_without_a_tree_arrival_decides(kind: str) -> None:
    prompts = [[9, 9], [1, 2, 3], [9, 8]]
    assert order_of(DfsWeight("skip"), prompts, [[1, 2, 3, 4]], kind=kind) == [0, 1, 2]


class Weighed(Audited):
    """Compares the whole order at the start of each pass with the definition."""

    def candidates(self, view: SchedulerView) -> Any:
        own: dict[NodeView | None, list[SequenceView]] = {}
        for sequence in view.waiting:
            own.setdefault(sequence.match_node, []).append(sequence)
        roots = list(view.cache.roots())
        expected = self.postorder(roots, own) if roots else [s.index for s in view.waiting]
        index_of = {s.id: s.index for s in view.waiting}
        assert [index_of[id] for id in order(self.policy, view)] == expected
        return self.policy.candidates(view)

    def postorder(
        self, nodes: list[NodeView], own: dict[NodeView | None, list[SequenceView]]
    ) -> list[int]:
        """Heavier nodes first, then by insertion; of each its children first, then its own."""

        def weight(node: NodeView) -> int:
            return len(own.get(node, [])) + sum(map(weight, node.children()))

        indices: list[int] = []
        # Stable: roots, which have no serial, stay in the order of their first use.
        for node in sorted(nodes, key=lambda node: (-weight(node), node.serial)):
            indices += self.postorder(list(node.children()), own)
            mine = sorted(own.get(node, []), key=lambda s: (-s.num_matched_tokens, s.index))
            indices += [s.index for s in mine]
        return indices


@settings(max_examples=200)
@given(worlds(replicas=1))
def test_the_weighed_order_is_that_of_the_tree_as_it_is(world: World) -> None:
    world.run(policy=lambda: Weighed(DfsWeight("skip"), lambda view, left: left[0]))
