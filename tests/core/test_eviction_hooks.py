"""What an eviction policy hears, and the slot it may keep on each node."""

from __future__ import annotations

from typing import Any

from testbed.core.policy import EvictionPolicy
from testbed.core.views import NodeView, SequenceView
from tests.core.building import Listener, radix_driver


class Diary(EvictionPolicy):
    """LRU that writes down every hook with the edge's (start, end)."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, int, int]] = []

    def priority(self, node: NodeView, now: int) -> int:
        return node.last_access

    def note(self, what: str, node: NodeView) -> None:
        self.heard.append((what, node.end - node.num_tokens, node.end))

    def on_insert(self, node: NodeView, sequence: SequenceView) -> None:
        self.note("insert", node)

    def on_touch(self, node: NodeView, sequence: SequenceView) -> None:
        self.note("touch", node)

    def on_split(self, upper: NodeView, lower: NodeView) -> None:
        assert upper.state is None
        self.note("upper", upper)
        self.note("lower", lower)

    def on_evict(self, node: NodeView) -> None:
        self.note("evict", node)

    def take_notes(self) -> list[tuple[str, int, int]]:
        heard, self.heard = self.heard, []
        return heard


def test_a_cold_request_inserts_its_chunks_and_its_output() -> None:
    diary = Diary()
    driver = radix_driver(eviction=diary)
    sequence = driver.wait([1, 2, 3, 4], output=3)
    driver.admit(sequence)
    driver.compute(sequence, 2)
    driver.compute(sequence, 4)
    for _ in range(3):
        driver.decode(sequence)
    driver.finish(sequence)
    assert diary.take_notes() == [("insert", 0, 2), ("insert", 2, 4), ("insert", 4, 6)]


def test_a_hit_splits_and_touches_each_node_once() -> None:
    diary = Diary()
    driver = radix_driver(eviction=diary)
    driver.serve([1, 2, 3, 4])
    driver.serve([1, 2, 3, 4, 5, 6])
    diary.take_notes()
    driver.serve([1, 2, 3, 4, 5, 9, 8])
    assert diary.take_notes() == [
        *(("upper", 4, 5), ("lower", 5, 6), ("touch", 4, 5), ("touch", 0, 4)),
        ("insert", 5, 7),
    ]


def test_adopting_splits_and_touches_what_is_adopted() -> None:
    diary = Diary()
    driver = radix_driver(eviction=diary)
    first, second = driver.wait([1, 2, 3, 4]), driver.wait([1, 2, 9])
    driver.admit(first)
    driver.admit(second)
    driver.compute(first, 4)
    diary.take_notes()
    driver.compute(second, 3)
    assert diary.take_notes() == [
        *(("upper", 0, 2), ("lower", 2, 4), ("insert", 2, 3), ("touch", 0, 2)),
    ]


def test_only_a_node_s_last_page_is_an_eviction_of_the_node() -> None:
    diary = Diary()
    driver = radix_driver(eviction=diary)
    driver.serve([1, 2, 3])
    diary.take_notes()
    driver.evict(2)
    assert diary.take_notes() == []
    driver.evict(1)
    assert diary.take_notes() == [("evict", 0, 1)]


class Pinned(EvictionPolicy):
    """Keeps a use count of its own on each node; an upper half starts with its lower half's."""

    def priority(self, node: NodeView, now: int) -> Any:
        return node.state

    def on_insert(self, node: NodeView, sequence: SequenceView) -> None:
        node.state = 0

    def on_touch(self, node: NodeView, sequence: SequenceView) -> None:
        node.state += 1

    def on_split(self, upper: NodeView, lower: NodeView) -> None:
        upper.state = lower.state


def test_a_policy_keeps_its_own_state_on_the_nodes() -> None:
    listener = Listener()
    driver = radix_driver(eviction=Pinned(), listener=listener)
    for prompt in ([1, 2, 3], [4, 5, 6], [1, 2, 3, 9], [1, 2, 8]):
        driver.serve(prompt)
    # Uses: [1,2] 2, [3] 1, [9] 0, [8] 0, [4,5,6] 0 but older than [9] and [8].
    driver.evict(7)
    left = [driver.written[page][1][-1] for page in listener.evicted]
    assert left == [6, 5, 4, 9, 8, 3, 2]


class Prioritised(EvictionPolicy):
    """The highest priority of the requests that left a node's path, lowest first."""

    def priority(self, node: NodeView, now: int) -> int:
        return node.state or 0

    def on_release(self, node: NodeView, sequence: SequenceView) -> None:
        passed: NodeView | None = node
        while passed is not None and passed.parent is not None:
            passed.state = max(passed.state or 0, sequence.num_prompt_tokens)
            passed = passed.parent

    def on_split(self, upper: NodeView, lower: NodeView) -> None:
        upper.state = lower.state


def test_a_policy_hears_who_leaves_and_where_its_path_ends() -> None:
    listener = Listener()
    driver = radix_driver(eviction=Prioritised(), listener=listener)
    for prompt in ([1, 2, 3, 4, 5], [6, 7], [8, 9, 10]):
        driver.serve(prompt)
    driver.evict(5)
    left = [driver.written[page][1][-1] for page in listener.evicted]
    assert left == [7, 6, 10, 9, 8]
