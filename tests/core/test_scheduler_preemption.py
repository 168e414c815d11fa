"""Running out of memory while decoding: who goes, what is kept, what is counted."""

from __future__ import annotations

import pytest

from testbed.core.admission import choose_victim
from testbed.core.request import Sequence, State
from tests.core.building import make_request
from tests.core.stepping import GREEDY, Step, Stepper


def outcomes(sequence: Sequence) -> tuple[int, int, int, int]:
    return (
        sequence.num_preemptions,
        sequence.num_cached_tokens,
        sequence.num_rehit_tokens,
        sequence.num_recomputed_tokens,
    )


def preempted(stepper: Stepper) -> list[tuple[int, int]]:
    """(request, tokens whose KV was dropped) of each preemption."""
    return [(row[3], row[4]) for row in stepper.log.rows if row[2] == "preempt"]


def test_the_newest_goes_and_comes_back_to_its_published_prompt() -> None:
    stepper = Stepper(num_pages=12, **GREEDY)
    first = stepper.add([1, 2, 3, 4], output=5)
    second = stepper.add([11, 12, 13, 14], output=5)
    # The prompts take 8 pages and two steps of two decodes the rest. In step 4 the second leaves
    # with 6 computed tokens; its prompt stays cached, its 2 own pages carry the first to its end.
    assert stepper.run() == [
        Step([], [(0, 0, 4), (1, 0, 4)], []),
        Step([0, 1], [], []),
        Step([0, 1], [], []),
        Step([0], [], []),
        Step([0], [], [0]),
        Step([], [(1, 4, 3)], []),
        Step([1], [], [1]),
    ]
    assert preempted(stepper) == [(1, 6)]
    assert (first.decode_spans, second.decode_spans) == ([(1, 5)], [(1, 3), (6, 7)])
    assert (outcomes(first), outcomes(second)) == ((0, 0, 0, 0), (1, 0, 4, 2))


def test_hits_are_counted_at_the_first_admission_only() -> None:  # issue 5
    stepper = Stepper(num_pages=14, **GREEDY)
    stepper.add([1, 2, 3, 4])
    stepper.run()
    stepper.add([21, 22, 23, 24], output=6)
    victim = stepper.add([1, 2, 3, 4, 5], output=4)
    steps = stepper.run()
    # Step 2 leaves 5 of 14 pages, step 4 leaves 1, step 5 needs 2: the victim leaves with 7
    # computed tokens. The other one ends in step 7, and the victim finds its whole prompt.
    assert preempted(stepper) == [(2, 7)]
    assert outcomes(victim) == (1, 4, 5, 2)
    assert steps[-1] == Step([], [(2, 5, 3)], [2])


def test_what_was_evicted_meanwhile_is_computed_again() -> None:
    stepper = Stepper(num_pages=8, **GREEDY)
    stepper.add([1, 2, 3], output=4)
    victim = stepper.add([11, 12, 13], output=3)
    # Step 3 needs 2 pages of none: the victim leaves with 4 computed tokens. Step 4 takes the tail
    # of its cached prompt, so that 2 tokens are found again.
    assert stepper.run() == [
        Step([], [(0, 0, 3), (1, 0, 3)], []),
        Step([0, 1], [], []),
        Step([0], [], []),
        Step([0], [], [0]),
        Step([], [(1, 2, 3)], [1]),
    ]
    assert outcomes(victim) == (1, 0, 2, 2)
    assert victim.decode_spans == [(1, 2), (5, 5)]


def test_a_preempted_sequence_waits_in_front() -> None:
    stepper = Stepper(num_pages=9, max_running=2, **GREEDY)
    stepper.add([1, 2, 3], output=4)
    stepper.add([11, 12, 13], output=4)
    stepper.add([21, 22])
    for _ in range(3):
        stepper.step()
    assert preempted(stepper) == [(1, 4)]
    assert [sequence.request.id for sequence in stepper.scheduler.waiting] == [1, 2]


def test_of_the_fewest_generated_the_longest_prompt_goes() -> None:  # row 117
    stepper = Stepper(num_pages=18, victim="fewest_generated", **GREEDY)
    stepper.add([1, 2], output=9)
    for _ in range(3):
        stepper.step()
    longer = stepper.add([21, 22, 23], output=8)
    shorter = stepper.add([11, 12], output=9)
    for _ in range(4):
        stepper.step()
    # Step 4 leaves 8 pages, step 6 leaves 2, step 7 needs 3. Both newcomers have generated 3
    # tokens, the first one 6; the last admitted is the shorter one.
    assert preempted(stepper) == [(1, 5)]
    stepper.run()
    assert [longer.state, shorter.state] == [State.FINISHED, State.FINISHED]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [("lowest_priority", [1, 5, 10]), ("highest_priority", [10, 5, 1])],
)
def test_the_least_urgent_goes_first(rule: str, expected: list[int]) -> None:  # row 117
    running = [
        Sequence(make_request(n, range(10), 9, priority=p), n) for n, p in enumerate((10, 1, 5))
    ]
    order = []
    while running:
        victim = choose_victim(running, rule)
        running.remove(victim)
        order.append(victim.request.priority)
    assert order == expected


def test_of_equal_priority_the_fewest_generated_and_longest_goes() -> None:  # row 117
    shapes = ((10, 10), (1, 10), (1, 50))
    running = []
    for n, (generated, prompt) in enumerate(shapes):
        sequence = Sequence(make_request(n, range(prompt), 20), n)
        sequence.num_joined_generated = generated
        running.append(sequence)
    order = []
    while running:
        victim = choose_victim(running, "lowest_priority")
        running.remove(victim)
        order.append(victim.index)
    assert order == [2, 1, 0]


def test_full_reserve_never_preempts() -> None:
    stepper = Stepper(num_pages=12, reserve="full")
    for number in range(4):
        stepper.add(range(10 * number, 10 * number + 3), output=4)
    stepper.run()
    assert all(s.num_preemptions == 0 for s in stepper.sequences.values())


def test_peak_reserve_never_preempts_strangers_in_either_batching() -> None:
    for batching in ("mixed", "prefill_first"):
        stepper = Stepper(num_pages=13, reserve="peak", kind="none", batching=batching)
        stepper.add(range(4), output=4)
        stepper.step()
        stepper.add(range(100, 104), output=4)
        stepper.run()
        preemptions = [s.num_preemptions for s in stepper.sequences.values()]
        assert preemptions == [0, 0], batching


def test_a_half_prefilled_victim_keeps_what_it_published() -> None:
    stepper = Stepper(num_pages=11, chunk_size=3, **GREEDY)
    stepper.add([1, 2], output=6)
    stepper.step()
    victim = stepper.add(range(100, 107), output=2)
    # The victim holds 7 pages from step 2 on; in step 4 there is none left for the other one.
    assert stepper.run() == [
        Step([0], [(1, 0, 2)], []),
        Step([0], [(1, 2, 2)], []),
        Step([0], [], []),
        Step([0], [], []),
        Step([0], [], [0]),
        Step([], [(1, 4, 3)], []),
        Step([1], [], [1]),
    ]
    assert (preempted(stepper), outcomes(victim)) == ([(1, 4)], (1, 0, 4, 0))


def test_what_earlier_chunks_computed_is_no_hit() -> None:  # issue 3
    stepper = Stepper(num_pages=4000, chunk_size=1000)
    sequence = stepper.add(range(3000))
    steps = stepper.run()
    assert [step.prefills for step in steps] == [[(0, n, 1000)] for n in (0, 1000, 2000)]
    assert outcomes(sequence) == (0, 0, 0, 0)
    assert sequence.chunk_reread_tokens == 1000 + 2000


def test_a_cached_prefix_was_not_computed_by_an_earlier_chunk() -> None:
    stepper = Stepper(chunk_size=4, page_size=4)
    stepper.add([1, 2, 3, 4])
    stepper.run()
    sequence = stepper.add([1, 2, 3, 4, *range(50, 62)])
    stepper.run()
    # 12 tokens in chunks of 4 after 4 cached ones: 4 and then 8 were computed before.
    assert (sequence.num_cached_tokens, sequence.chunk_reread_tokens) == (4, 12)
