"""Failures that other engines met in public, held against the core; numbers are their reports'.

Some cannot happen here by construction: there is no forward pass in flight while requests finish,
and no rank with decisions of its own. Then the test holds the property that rules them out.
tests/engine/test_known_bugs.py has the failures that only a model's output shows.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from testbed.core.batch import Batch, StepResult
from testbed.core.request import Request, Sequence
from testbed.policies import registry
from tests.core.building import make_request, radix_driver, tokens_of
from tests.core.stepping import GREEDY, Stepper

ROOT = Path(__file__).resolve().parents[2]


def table(sequence: Sequence) -> list[int]:
    return sequence.pages[: sequence.num_pages].tolist()


def free_pages(stepper: Stepper) -> set[int]:
    return set(stepper.scheduler.cache.pool.free_pages().tolist())


def pressed(seed: int, page_size: int, **switches: Any) -> Stepper:
    """A small pool that many requests with shared prefixes fight for."""
    draw = np.random.default_rng(seed)
    prefixes = draw.integers(0, 4, (3, 12))
    pages = 36 // page_size
    stepper = Stepper(pages, page_size=page_size, chunk_size=8, **GREEDY, **switches)
    for _ in range(14):
        own = draw.integers(0, 4, int(draw.integers(1, 9)))
        prompt = [*prefixes[int(draw.integers(0, 3))][: int(draw.integers(1, 13))], *own]
        stepper.add(prompt, int(draw.integers(1, 14)))
    return stepper


def test_pages_of_a_duplicate_are_remapped_before_they_are_freed() -> None:  # bug 1
    """mini-sglang PR 142: two equal prompts in one batch, then somebody takes pages."""
    stepper = Stepper(60)
    first, second = stepper.add(range(16), 4), stepper.add(range(16), 4)
    stepper.step()
    assert table(first) == table(second)
    assert free_pages(stepper).isdisjoint(table(second))
    third = stepper.add(range(100, 120), 4)
    stepper.step()
    assert set(table(third)).isdisjoint(table(first) + table(second))


class InFlight:
    """What a batch may count on between schedule() and commit()."""

    def __init__(self, stepper: Stepper, batch: Batch) -> None:
        self._stepper = stepper
        self._tables = {
            sequence: table(sequence)
            for sequence in [*batch.decodes, *(row.sequence for row in batch.prefills)]
        }
        size = stepper.scheduler.cache.page_size
        self.written: list[int] = []
        for sequence in batch.decodes:
            self.written.append(table(sequence)[sequence.num_computed_tokens // size])
        for sequence, start, count in batch.prefills:
            self.written += table(sequence)[start // size : -(-(start + count) // size)]

    def check(self) -> None:
        free = free_pages(self._stepper)
        for sequence, pages in self._tables.items():
            assert table(sequence) == pages
            assert free.isdisjoint(pages)
        assert len(set(self.written)) == len(self.written), "two rows write to one page"


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("insert_at", ["commit", "schedule"])
@pytest.mark.parametrize("seed", range(4))
def test_nothing_in_flight_loses_its_pages_or_shares_what_it_writes(
    page_size: int, insert_at: str, seed: int
) -> None:  # bugs 2 and 4
    """mini-sglang PR 111 and SGLang 18744: freed or reassigned while a launched batch reads it.

    Here a sequence leaves at commit or, preempted, before the batch is built; what arrives in
    between changes nothing.
    """
    stepper = pressed(seed, page_size, insert_at=insert_at)
    scheduler = stepper.scheduler
    preempted = 0
    for number in range(1000):
        batch = scheduler.schedule(float(number))
        if batch is None:
            break
        flight = InFlight(stepper, batch)
        flight.check()
        if number % 5 == 0 and number < 50:
            stepper.add(range(number, number + 9), 3)
        flight.check()
        scheduler.commit(batch, StepResult(1.0), number + 1.0)
        preempted = sum(s.num_preemptions for s in stepper.sequences.values())
    assert preempted
    assert not scheduler.waiting


def test_no_order_comes_from_hashes() -> None:  # bug 3
    """mini-sglang PR 113: batches in the order of a set, which differs from process to process."""
    program = (
        "from tests.core.test_known_bugs import decisions; "
        "print(*(decisions(name) for name in ('fcfs', 'lpm', 'dfs_weight', 'vtc', 'dlpm')))"
    )
    digests = set()
    for seed in ("0", "1"):
        run = subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": f"{ROOT}:{ROOT / 'kernels'}"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert run.returncode == 0, run.stderr
        digests.add(run.stdout)
    assert len(digests) == 1
    assert len(set(digests.pop().split())) > 2, "the policies must differ for this to mean much"


def decisions(policy: str) -> str:
    """Digest of all decisions of a run under pressure, with clients and namespaces."""
    draw = np.random.default_rng(5)
    stepper = Stepper(40, registry.scheduling(policy), chunk_size=12, **GREEDY)
    for id in range(24):
        prompt = [*range(int(draw.integers(1, 9))), *draw.integers(0, 9, 4)]
        client, space = f"client {id % 5}", f"space {id % 2}"
        output = int(draw.integers(1, 9))
        stepper.submit(make_request(id, prompt, output, client=client, namespace=space))
    stepper.run()
    return stepper.log.hexdigest()


@pytest.mark.parametrize("kind", ["radix", "block_hash"])
def test_a_stopped_sequence_caches_only_what_was_computed(kind: str) -> None:  # bug 5
    """SGLang 24590: the end was seen late, and the tree held a token whose KV does not exist."""
    stepper = Stepper(100, kind=kind)
    prompt = tokens_of(range(10))
    stopping = stepper.submit(Request(0, prompt, max_new_tokens=50, stop_tokens=(77,)))
    for token in (60, 61, 77):
        commit_token(stepper, token)
    assert stopping.output_tokens().tolist() == [60, 61, 77]
    longer = tokens_of([*range(10), 60, 61, 77, 62])
    assert stepper.scheduler.cache.peek(longer) == 12
    follower = stepper.submit(Request(1, longer, max_new_tokens=1))
    commit_token(stepper, 5)
    assert follower.num_cached_tokens == 12


def commit_token(stepper: Stepper, token: int) -> None:
    batch = stepper.scheduler.schedule(stepper.now)
    assert batch is not None
    result = StepResult(1.0, np.array([token], dtype=np.int32))
    stepper.scheduler.commit(batch, result, stepper.now)
    stepper.scheduler.cache.check(stepper.scheduler.running)


def test_a_repeated_prompt_is_not_kept_twice() -> None:  # bug 6
    """SGLang PR 38140: the recomputed last token of a full hit lived on in a page of its own."""
    stepper = Stepper(60)
    stepper.add(range(16), 1)
    stepper.run()
    cached = stepper.scheduler.cache.num_evictable_pages
    again = stepper.add(range(16), 3)
    stepper.step()
    assert again.num_cached_tokens == 15
    assert again.num_tree_pages == cached == 16
    # 16 pages in the tree, nothing else taken: the spare copy went back at once.
    assert stepper.scheduler.cache.num_free_pages == 44


def test_chunks_of_a_preempted_prefill_are_unlocked_not_freed() -> None:  # bug 7
    """SGLang 38319: published chunks were freed with their sequence, and garbage was hit."""
    stepper = Stepper(18, chunk_size=6, **GREEDY)
    stepper.add(range(50, 54), 9)
    stepper.step()
    victim = stepper.add(range(12), 1)
    while not victim.num_preemptions:
        stepper.step()
        in_tree = stepper.scheduler.cache.peek(tokens_of(range(12)))
        assert in_tree >= victim.num_computed_tokens
    assert victim.num_generated_tokens == 0 < victim.lost_tokens
    assert stepper.scheduler.cache.num_evictable_pages >= in_tree > 0
    stepper.run()
    assert victim.num_rehit_tokens + victim.num_recomputed_tokens == victim.lost_tokens


@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_a_full_hit_still_computes_a_token(page_size: int) -> None:  # bug 8
    """nano-vllm 144, vLLM 7753: a cached prompt of whole blocks left nothing to compute."""
    stepper = Stepper(64, page_size=page_size)
    for _ in range(3):
        stepper.add(range(48), 1)
        stepper.run()
    hits = [sequence.num_cached_tokens for sequence in stepper.sequences.values()]
    assert hits == [0, 48 - page_size, 48 - page_size]


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("seed", range(4))
def test_chunks_cover_exactly_what_is_not_cached(page_size: int, seed: int) -> None:  # bug 9
    """nano-vllm PRs 207, 211, 213: lengths taken before the hit was known, or past the chunk."""
    stepper = pressed(seed, page_size)
    scheduler = stepper.scheduler
    next_start: dict[int, int] = {}
    for number in range(1000):
        batch = scheduler.schedule(float(number))
        if batch is None:
            break
        admitted = {
            row[3]: (row[4], row[5])
            for row in stepper.log.rows
            if row[1] == scheduler.step and row[2] == "admit"
        }
        for sequence, start, count in batch.prefills:
            id = sequence.request.id
            if id in admitted:
                cached, extend = admitted[id]
                assert cached + extend == len(sequence.tokens)
                next_start[id] = cached
            assert start == next_start[id]
            assert 0 < count <= len(sequence.tokens) - start
            assert start + count <= sequence.num_pages * page_size
            next_start[id] = start + count
        for sequence in batch.decodes:
            assert sequence.num_computed_tokens < sequence.num_pages * page_size
        scheduler.commit(batch, StepResult(1.0), number + 1.0)
    assert any(sequence.num_preemptions for sequence in stepper.sequences.values())
    for sequence in stepper.sequences.values():
        assert sequence.num_generated_tokens == sequence.num_output_tokens


def test_what_outgrows_the_pool_is_refused_and_the_last_one_running_runs_on() -> None:  # bug 10
    """nano-vllm 274, vLLM 39734, SGLang 14948: an assertion, or everyone waits for everyone."""
    stepper = Stepper(2, page_size=4, reserve_newcomer=False, **GREEDY)
    grows = stepper.add(range(4), 6)
    assert grows.refusal == "needs 3 pages, the pool has 2"
    # Each fits alone, never both: one is preempted until the other is done.
    pair = [stepper.add(range(10 * id, 10 * id + 4), 5) for id in (1, 2)]
    stepper.run(limit=50)
    assert [sequence.num_generated_tokens for sequence in pair] == [5, 5]
    assert sum(sequence.num_preemptions for sequence in pair) == 1


def test_a_preempted_sequence_finding_its_own_pages_is_no_hit() -> None:  # bug 12
    """vLLM 25780: random prompts reported a hit rate of 30 %."""
    draw = np.random.default_rng(0)
    stepper = Stepper(60, chunk_size=16, **GREEDY)
    for start in range(0, 10_000, 1000):
        stepper.add(draw.permutation(1000)[:12] + start, 15)
    stepper.run()
    sequences = stepper.sequences.values()
    assert sum(s.num_rehit_tokens for s in sequences) > 0
    assert sum(s.num_cached_tokens for s in sequences) == 0


def test_a_page_that_many_share_is_counted_once() -> None:  # bug 13
    """SGLang 35270: a counter of evictable pages took shared ones twice."""
    stepper = Stepper(100)
    cache = stepper.scheduler.cache
    for own in (100, 200, 300):
        stepper.add([*range(8), own, own + 1], 3)

    def books() -> tuple[int, int, int]:
        return cache.num_free_pages, cache.num_locked_pages, cache.num_evictable_pages

    assert books() == (100, 0, 0)
    stepper.step()
    # 8 shared and 3 x 2 own prompt tokens.
    assert books() == (86, 14, 0)
    stepper.run()
    # Each keeps two of its three output tokens.
    assert books() == (80, 0, 20)


@pytest.mark.parametrize("kind", ["radix", "block_hash"])
def test_no_two_prefixes_are_taken_for_one(kind: str) -> None:  # bug 14
    """vLLM 8229 and GHSA-rm76-4mrf-v9r8: blocks that a weak or truncated hash cannot tell apart."""
    stepper = Stepper(400, kind=kind, page_size=2)
    cache = stepper.scheduler.cache
    pairs = [(a, b) for a in range(0, 20 * 256, 256) for b in range(20)]
    for a, b in pairs:
        assert cache.peek(tokens_of([a, b])) == 0
        stepper.add([a, b], 1)
        stepper.step()
    assert cache.num_evictable_pages == len(pairs)
    # Equal in the lowest byte, or with the same bytes in another order.
    for other in ([1, 0], [256, 256], [0, 256], [2**24, 0]):
        assert cache.peek(tokens_of(other)) == 0


def test_steady_arrivals_do_not_stop_those_who_decode() -> None:  # bug 15
    """SGLang 32549: prefills came first, and running requests got a token every 24 seconds."""
    stepper = Stepper(2000, chunk_size=20)
    oldest = stepper.add(range(5), 60)
    stepper.step()
    for number in range(1, 59):
        # More than a step can prefill.
        stepper.add(range(1000 * number, 1000 * number + 24), 1)
        step = stepper.step()
        assert step is not None
        assert step.decodes[0] == 0
        assert step.prefills
        assert oldest.num_generated_tokens == number + 1


def test_throughput_recovers_once_the_pressure_is_over() -> None:  # bug 16
    """SGLang 26248 and 14972: after a retraction the reserve stayed high, slots leaked."""
    switches = {"reserve": "ratio", "reserve_ratio": 0.2, "reserve_ratio_floor": 0.1}
    used, fresh = (Stepper(100, chunk_size=32, **switches) for _ in range(2))
    for start in range(0, 8000, 1000):
        used.add(range(start, start + 10), 40)
    used.run()
    assert sum(sequence.num_preemptions for sequence in used.sequences.values()) > 0
    assert used.scheduler.cache.num_available_pages == 100
    for stepper in (used, fresh):
        for start in range(10_000, 18_000, 1000):
            stepper.add(range(start, start + 10), 5)
    assert len(used.run()) == len(fresh.run())


def test_partial_pages_do_not_push_cached_ones_out() -> None:  # bug 17
    """vLLM PR 42656: pages that can never be hit stood in the same queue as cached ones.

    kind="block_hash" does so on purpose, as vLLM does: test_block_hash_cache.py has
    test_partial_blocks_wait_in_the_queue_like_all_others.
    """
    stepper = Stepper(8, page_size=4)
    stepper.add(range(20), 1)
    stepper.run()
    for start in range(100, 200, 10):
        stepper.add(range(start, start + 3), 1)
        stepper.run()
    assert stepper.scheduler.cache.peek(tokens_of(range(20))) == 20


def test_the_kept_half_of_a_split_counts_as_used() -> None:  # bug 19
    """mini-sglang's radix cache: a partial match split the node and left the old time on both."""
    driver = radix_driver()
    driver.serve(range(10))
    driver.serve(range(50, 60))
    driver.serve(range(5))
    # Oldest first: the unshared half, then the other prompt; the shared half is as young as the
    # request that used it. A request that went on from there would keep it by its mere child.
    driver.evict(5)
    assert [driver.peek(*range(10)), driver.peek(*range(50, 60))] == [5, 10]
    driver.evict(10)
    assert [driver.peek(*range(10)), driver.peek(*range(50, 60))] == [5, 0]
