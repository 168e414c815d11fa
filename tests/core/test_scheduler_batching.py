"""What runs in a step: chunks, mixed and prefill-first batches, budgets and shapes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.core.batch import BatchShape, StepResult
from testbed.core.request import State
from tests.core.stepping import GREEDY, Step, Stepper


def test_one_request_from_arrival_to_finish() -> None:
    stepper = Stepper()
    sequence = stepper.add([1, 2, 3], output=3)
    assert stepper.run() == [
        Step([], [(0, 0, 3)], []),
        Step([0], [], []),
        Step([0], [], [0]),
    ]
    assert (sequence.admitted_time, sequence.first_token_time, sequence.finish_time) == (0, 1, 3)
    assert (sequence.state, sequence.decode_spans) == (State.FINISHED, [(1, 3)])
    assert (sequence.num_computed_tokens, sequence.num_generated_tokens) == (5, 3)


def test_a_request_for_one_token_ends_with_its_prefill() -> None:
    stepper = Stepper()
    stepper.add([1, 2])
    assert stepper.run() == [Step([], [(0, 0, 2)], [0])]


def test_a_long_prompt_runs_in_chunks_of_whole_pages() -> None:
    stepper = Stepper(page_size=4, chunk_size=10)
    stepper.add(range(21))
    assert [step.prefills for step in stepper.run()] == [
        [(0, 0, 8)],
        [(0, 8, 8)],
        [(0, 16, 5)],
    ]


def test_a_started_prefill_goes_on_before_newcomers_who_get_the_rest() -> None:
    stepper = Stepper(chunk_size=8)
    stepper.add(range(12))
    stepper.add(range(100, 106))
    stepper.add(range(200, 203))
    assert [step.prefills for step in stepper.run()] == [
        [(0, 0, 8)],
        [(0, 8, 4), (1, 0, 4)],
        [(1, 4, 2), (2, 0, 3)],
    ]


def test_decode_rows_come_off_a_mixed_chunk_budget() -> None:
    stepper = Stepper(chunk_size=6)
    for start in (0, 10):
        stepper.add(range(start, start + 2), output=5)
    stepper.add(range(100, 110))
    steps = stepper.run()
    assert steps[0] == Step([], [(0, 0, 2), (1, 0, 2), (2, 0, 2)], [])
    assert steps[1] == Step([0, 1], [(2, 2, 4)], [])
    assert steps[2] == Step([0, 1], [(2, 6, 4)], [2])


def test_an_unaligned_rest_of_the_budget_is_not_used() -> None:
    stepper = Stepper(page_size=4, chunk_size=8)
    stepper.add([1, 2, 3, 4], output=3)
    stepper.step()
    stepper.add(range(10, 30))
    # 7 tokens are left beside the decode row: one page of 4.
    assert stepper.step() == Step([0], [(1, 0, 4)], [])
    assert stepper.step() == Step([0], [(1, 4, 4)], [0])
    assert stepper.step() == Step([], [(1, 8, 8)], [])


def test_prefill_first_decodes_only_when_no_prefill_can_run() -> None:
    stepper = Stepper(batching="prefill_first", chunk_size=4)
    stepper.add([1, 2], output=3)
    stepper.step()
    stepper.add(range(10, 16))
    assert stepper.run() == [
        Step([], [(1, 0, 4)], []),
        Step([], [(1, 4, 2)], [1]),
        Step([0], [], []),
        Step([0], [], [0]),
    ]
    assert stepper.sequences[0].decode_spans == [(1, 5)]


def test_the_longest_cached_prefix_is_found_before_the_rest_is_chunked() -> None:  # issue 14
    stepper = Stepper(chunk_size=8)
    stepper.add(range(40))
    stepper.run()
    second = stepper.add([*range(40), 99, 98])
    assert [step.prefills for step in stepper.run()] == [[(1, 40, 2)]]
    assert second.num_cached_tokens == 40


def test_without_chunks_a_prompt_is_computed_whole() -> None:
    stepper = Stepper(chunk_size=0, max_prefill_tokens=10)
    for start, length in ((0, 4), (100, 6), (200, 1)):
        stepper.add(range(start, start + length))
    assert stepper.run() == [
        Step([], [(0, 0, 4), (1, 0, 6)], [0, 1]),
        Step([], [(2, 0, 1)], [2]),
    ]


def test_without_chunks_a_prompt_longer_than_the_budget_runs_alone() -> None:
    stepper = Stepper(chunk_size=0, max_prefill_tokens=10)
    for start, length in ((0, 4), (100, 25), (200, 1)):
        stepper.add(range(start, start + length))
    assert [step.prefills for step in stepper.run()] == [[(0, 0, 4)], [(1, 0, 25)], [(2, 0, 1)]]


def test_the_prefill_limit_holds_with_chunks_too() -> None:
    stepper = Stepper(chunk_size=100, max_prefill_tokens=8)
    stepper.add(range(12))
    assert [step.prefills for step in stepper.run()] == [[(0, 0, 8)], [(0, 8, 4)]]


def test_the_number_of_running_sequences_is_limited() -> None:  # issue 10
    stepper = Stepper(max_running=2)
    for start in range(0, 50, 10):
        stepper.add([start, start + 1])
    assert [step.finished for step in stepper.run()] == [[0, 1], [2, 3], [4]]


def test_shapes_by_hand() -> None:
    stepper = Stepper(chunk_size=6)
    stepper.add([1, 2], output=5)
    stepper.add([11, 12, 13], output=5)
    scheduler = stepper.scheduler

    def shape() -> BatchShape:
        batch = scheduler.schedule(0.0)
        assert batch is not None
        found = batch.shape
        scheduler.commit(batch, StepResult(1.0), 0.0)
        return found

    # Prefills of 2 and 3 tokens: 3 + 6 causal pairs, 5 tokens of KV, both sampled.
    assert shape() == BatchShape(0, 0, 2, 5, 9, 5, 2)
    stepper.add(range(20, 27), output=2)
    # Decodes at contexts 3 and 4; a chunk of 4 from 0: 10 pairs; the chunk is not sampled.
    assert shape() == BatchShape(2, 7, 1, 4, 10, 4, 2)
    # Decodes at 4 and 5; the last 3 after 4: 3 * 4 + 6 pairs, 7 tokens of KV, sampled.
    assert shape() == BatchShape(2, 9, 1, 3, 18, 7, 3)
    assert shape() == BatchShape(3, 5 + 6 + 8, 0, 0, 0, 0, 3)


requests = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 9), st.integers(1, 5), st.integers(1, 6)),
    min_size=1,
    max_size=12,
)


@given(
    requests,
    st.sampled_from(["radix", "block_hash"]),
    st.sampled_from(["commit", "schedule"]),
    st.sampled_from(["mixed", "prefill_first"]),
    st.sampled_from([1, 2, 4]),
)
def test_what_decode_rows_share_is_what_their_page_tables_share(
    requests: list[tuple[int, int, int, int]], kind: str, insert_at: str, batching: str, size: int
) -> None:
    stepper = Stepper(
        num_pages=36 // size,
        kind=kind,
        insert_at=insert_at,
        batching=batching,
        page_size=size,
        chunk_size=8,
        **GREEDY,
    )
    for text, length, own, output in requests:
        shared = range(100 * text, 100 * text + length)
        stepper.add([*shared, *range(900, 900 + own)], output)
    # Each step compares the two.
    stepper.run()


def test_a_fully_cached_prompt_may_keep_its_logits() -> None:
    stepper = Stepper(min_computed_tokens=0)
    stepper.add([1, 2, 3, 4])
    stepper.run()
    again = stepper.add([1, 2, 3, 4], output=2)
    assert stepper.run() == [Step([], [(1, 4, 0)], []), Step([1], [], [1])]
    assert again.num_cached_tokens == 4


@pytest.mark.parametrize(("kind", "hit"), [("radix", 8), ("block_hash", 8), ("none", 0)])
def test_the_config_names_the_cache(kind: str, hit: int) -> None:
    stepper = Stepper(kind=kind, page_size=4)
    stepper.add(range(10))
    stepper.run()
    assert stepper.add(range(10)).num_matched_tokens == hit


@pytest.mark.parametrize("kind", ["radix", "block_hash"])
@pytest.mark.parametrize(("insert_at", "hits"), [("commit", [0, 0, 8]), ("schedule", [0, 8, 8])])
def test_siblings_of_one_step_hit_if_pages_enter_when_scheduled(
    kind: str, insert_at: str, hits: list[int]
) -> None:
    stepper = Stepper(kind=kind, page_size=4, insert_at=insert_at)
    sequences = [stepper.add(range(10)) for _ in range(2)]
    first = stepper.step()
    assert first is not None
    assert first.prefills == [(0, 0, 10), (1, hits[1], 10 - hits[1])]
    sequences.append(stepper.add(range(10)))
    stepper.run()
    assert [sequence.num_cached_tokens for sequence in sequences] == hits
