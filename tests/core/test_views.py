"""Views show what is, cannot be written to, and never tell how long an output will be."""

from __future__ import annotations

import numpy as np
import pytest

from testbed.core.policy import Proposals, SchedulingPolicy
from testbed.core.views import (
    CacheView,
    ClientView,
    NodeView,
    SchedulerView,
    SequenceView,
    WaitingView,
)
from tests.core.stepping import Stepper


class Window(SchedulingPolicy):
    """Keeps the view it was started with; admits nobody while `shut`."""

    def __init__(self) -> None:
        self.shut = False
        self.view: SchedulerView

    def on_start(self, view: SchedulerView) -> None:
        self.view = view

    def candidates(self, view: SchedulerView) -> Proposals:
        assert view is self.view
        return iter(()) if self.shut else iter(view.waiting)


def stepper_with_all() -> tuple[Stepper, SchedulerView]:
    """One cached prompt, one running and one waiting sequence."""
    policy = Window()
    stepper = Stepper(num_pages=100, policy=policy)
    stepper.add([1, 2, 3, 4])
    stepper.run()
    stepper.add([1, 2, 9], output=50, client="a")
    stepper.step()
    policy.shut = True
    stepper.add([1, 2, 3, 4, 5], output=60, client="b", weight=2.0, priority=3, program="p", turn=4)
    return stepper, policy.view


def test_the_scheduler_s_view_is_current() -> None:
    stepper, view = stepper_with_all()
    assert [s.id for s in view.waiting] == [2]
    assert [s.id for s in view.running] == [1]
    assert (len(view.waiting), view.now) == (1, stepper.scheduler.now)
    assert view.num_free_slots == stepper.scheduler.config.max_running - 1
    assert view.clients == {"a": ClientView(0, 1), "b": ClientView(1, 0)}
    cache = view.cache
    assert cache.page_size == 1
    # [1, 2] is locked with [9]; [3, 4] is evictable.
    assert (cache.num_locked_pages, cache.num_evictable_pages) == (3, 2)
    assert cache.num_free_pages == 95
    assert cache.peek(np.array([1, 2, 3, 7], dtype=np.int32)) == 3
    assert [(leaf.num_tokens, leaf.end) for leaf in cache.evictable_leaves()] == [(2, 4)]
    stepper.step()
    assert (cache.num_free_pages, view.running[0].num_generated_tokens) == (94, 2)


def test_a_waiting_sequence_s_view() -> None:
    _, view = stepper_with_all()
    (sequence,) = view.waiting
    assert (sequence.id, sequence.index, sequence.client, sequence.weight) == (2, 2, "b", 2.0)
    assert (sequence.priority, sequence.program, sequence.turn) == (3, "p", 4)
    assert (sequence.namespace, sequence.arrival, sequence.num_preemptions) == ("", 0.0, 0)
    assert (sequence.num_tokens, sequence.num_prompt_tokens) == (5, 5)
    assert (sequence.num_matched_tokens, sequence.num_generated_tokens) == (4, 0)
    assert sequence.tokens.tolist() == [1, 2, 3, 4, 5]
    assert sequence.max_new_tokens == 60
    node = sequence.match_node
    assert node is not None
    assert (node.num_tokens, node.end, node.num_children, node.num_waiting) == (2, 4, 0, 1)
    assert (node.locks, node.hits, node.created) == (0, 1, 1)
    parent = node.parent
    assert parent is not None and parent.parent is not None
    assert (parent.locks, parent.hits, parent.num_waiting, parent.last_access) == (1, 2, 1, 2)
    assert [child.num_tokens for child in parent.children()] == [2, 1]
    assert parent.parent.parent is None


KINDS = (SchedulerView, WaitingView, CacheView, SequenceView, NodeView, ClientView)


@pytest.mark.parametrize("kind", KINDS)
def test_views_are_read_only(kind: type) -> None:
    _, scheduler_view = stepper_with_all()
    (sequence,) = scheduler_view.waiting
    views = (
        *(scheduler_view, scheduler_view.waiting, scheduler_view.cache),
        *(sequence, sequence.match_node, scheduler_view.clients["a"]),
    )
    (view,) = (one for one in views if type(one) is kind)
    fields = [field for field in dir(view) if not field.startswith("__")]
    assert fields
    for field in [*fields, "anything"]:
        if (kind, field) == (NodeView, "state"):
            continue
        with pytest.raises(AttributeError):
            setattr(view, field, 0)


def test_tokens_cannot_be_written_to() -> None:
    stepper, view = stepper_with_all()
    (sequence,) = view.waiting
    with pytest.raises(ValueError, match="read-only"):
        sequence.tokens[0] = 9
    assert stepper.sequences[2].tokens.tolist() == [1, 2, 3, 4, 5]


def test_a_node_keeps_the_eviction_policy_s_state() -> None:
    _, view = stepper_with_all()
    (sequence,) = view.waiting
    node = sequence.match_node
    assert node is not None and node.state is None
    node.state = {"seen": 1}
    again = sequence.match_node
    assert again is not None and again.state == {"seen": 1}


def test_no_view_tells_the_true_length_of_an_output() -> None:
    policy = Window()
    stepper = Stepper(policy=policy)
    for id in (0, 1):
        stepper.add([10 * id, 11], output=17, max_new_tokens=1000)
        stepper.step()
        policy.shut = True
    for sequence in (*policy.view.waiting, *policy.view.running):
        public = [name for name in dir(sequence) if not name.startswith("_")]
        values = [getattr(sequence, name) for name in public]
        assert 17 not in [value for value in values if isinstance(value, int)]
        assert "output" not in public and "request" not in public


def test_without_a_tree_there_is_no_node() -> None:
    policy = Window()
    stepper = Stepper(policy=policy, kind="block_hash")
    stepper.add([1, 2, 3])
    (sequence,) = policy.view.waiting
    assert sequence.match_node is None
    assert list(policy.view.cache.roots()) == []
