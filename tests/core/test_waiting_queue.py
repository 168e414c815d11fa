"""The queue's order, and iteration while admissions take sequences out."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from testbed.core.request import Sequence, State
from testbed.core.waiting_queue import WaitingQueue
from tests.core.building import make_request


def sequences(count: int) -> list[Sequence]:
    return [Sequence(make_request(index, [1]), index) for index in range(count)]


def order(queue: WaitingQueue) -> list[int]:
    return [sequence.index for sequence in queue]


def take_out(queue: WaitingQueue, sequence: Sequence) -> None:
    queue.remove(sequence)
    sequence.state = State.RUNNING


def test_preempted_sequences_go_to_the_front() -> None:
    queue = WaitingQueue()
    a, b, c, d = sequences(4)
    queue.append(a)
    queue.append(b)
    queue.push_front(c)
    queue.push_front(d)
    assert (order(queue), len(queue)) == ([3, 2, 0, 1], 4)


def test_removing_the_last_one_leaves_a_usable_queue() -> None:
    queue = WaitingQueue()
    (a,) = sequences(1)
    for enter in (queue.append, queue.push_front):
        a.state = State.WAITING
        enter(a)
        take_out(queue, a)
        queue.unlink(a)
        assert (order(queue), len(queue)) == ([], 0)


def test_an_iteration_goes_on_past_everything_that_was_removed() -> None:
    queue = WaitingQueue()
    a, b, c, d, e = all_five = sequences(5)
    for sequence in all_five:
        queue.append(sequence)
    seen = []
    for sequence in queue:
        seen.append(sequence.index)
        if sequence is b:
            # Not only the current one, but the next ones and an earlier one.
            for gone in (b, c, a, d):
                take_out(queue, gone)
    assert (seen, order(queue)) == ([0, 1, 4], [4])
    for gone in (a, b, c, d):
        queue.unlink(gone)
        assert gone.queue_next is gone.queue_previous is None
    assert order(queue) == [e.index]


@given(st.lists(st.tuples(st.sampled_from(["append", "front", "remove"]), st.integers(0, 9))))
def test_the_queue_is_a_list(moves: list[tuple[str, int]]) -> None:
    queue, expected = WaitingQueue(), list[Sequence]()
    pool = sequences(10)
    for move, number in moves:
        sequence = pool[number]
        if move == "remove" and sequence in expected:
            expected.remove(sequence)
            take_out(queue, sequence)
            queue.unlink(sequence)
        elif move != "remove" and sequence not in expected:
            sequence.state = State.WAITING
            if move == "append":
                queue.append(sequence)
                expected.append(sequence)
            else:
                queue.push_front(sequence)
                expected.insert(0, sequence)
        assert (order(queue), len(queue)) == ([s.index for s in expected], len(expected))
