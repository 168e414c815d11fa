"""The bounded sample and the sketch of a log, against counting everything."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from testbed.advisor.sample import RunSample
from testbed.advisor.sketch import BLOCK_BYTES, LogSketch
from testbed.workloads.formats.record import PROMPT, Record, RecordSegment


def record(line: int, text: str = "x", client: str = "default") -> Record:
    return Record(line, (RecordSegment(PROMPT, text),), client=client)


def test_a_short_log_is_sampled_whole() -> None:
    sample = RunSample(max_runs=4, run_records=10)
    records = [record(i) for i in range(35)]
    for one in records:
        sample.add(one)
    assert sample.is_whole
    assert [list(run) for run in sample.runs] == [records]


def test_a_long_log_keeps_whole_runs_evenly_spread() -> None:
    sample = RunSample(max_runs=4, run_records=10)
    for i in range(123):
        sample.add(record(i))
    # Runs begin at 0, 10, 20, ..., 120; the fifth kept run halves them (every 2nd), and so does the
    # next fifth (every 4th): 0, 40, 80, 120.
    assert not sample.is_whole
    assert [(run[0].line, len(run)) for run in sample.runs] == [
        (0, 10),
        (40, 10),
        (80, 10),
        (120, 3),
    ]
    assert all(b.line == a.line + 1 for run in sample.runs for a, b in pairwise(run))


def test_long_prompts_close_a_run_early() -> None:
    sample = RunSample(max_runs=2, run_records=1000, run_chars=1000)
    for i in range(100):
        sample.add(record(i, "y" * 400))
    assert sum(len(run) for run in sample.runs) <= 3 * 3


def brute_force_sharing(texts: list[str]) -> float:
    seen, total = set(), 0
    for text in texts:
        data = b"\x00prompt\x00" + text.encode()
        for end in range(BLOCK_BYTES, len(data) + 1, BLOCK_BYTES):
            seen.add(data[:end])
            total += 1
    return 1 - len(seen) / total


def some_texts(count: int) -> list[str]:
    rng = random.Random(5)
    beginnings = ["".join(rng.choices("abcdef ", k=rng.randrange(100, 900))) for _ in range(20)]
    return [rng.choice(beginnings) + "".join(rng.choices("abcdef ", k=500)) for _ in range(count)]


def test_the_sketch_counts_shared_beginnings_exactly_while_it_can() -> None:
    sketch = LogSketch()
    texts = some_texts(300)
    for i, text in enumerate(texts):
        sketch.add(record(i, text, f"client {i % 3}"))
    assert sketch.is_exact
    assert sketch.sharing == pytest.approx(brute_force_sharing(texts), abs=1e-12)
    assert sketch.num_requests == 300
    assert sketch.clients == {"client 0": 100, "client 1": 100, "client 2": 100}


def test_the_sketch_estimates_them_in_bounded_memory() -> None:
    sketch = LogSketch(max_hashes=2000)
    texts = some_texts(2000)
    for i, text in enumerate(texts):
        sketch.add(record(i, text))
    assert not sketch.is_exact
    # The number of distinct blocks has a relative error of about 1 / sqrt(1000); three of that.
    distinct = 1 - brute_force_sharing(texts)
    assert sketch.sharing == pytest.approx(1 - distinct, abs=0.1 * distinct)


def test_a_prompt_without_sharing_shares_nothing() -> None:
    sketch = LogSketch()
    sketch.add(record(1, "short"))
    assert sketch.sharing == 0.0
