"""The benchmarks of the advisor and of miss ratios, small, and beside their peers."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest

from experiments.benchmarks import advisor, miss_ratio
from testbed.advisor.lint import lint
from testbed.metrics.prompt_paths import block_paths
from testbed.workloads.formats.chat import chat_record
from testbed.workloads.tokenize import StandInTokenizer


def test_the_log_has_the_two_faults_that_it_names_and_no_other() -> None:
    log = list(advisor.chat_log(400))
    assert log == list(advisor.chat_log(400))
    # A longer log begins with the shorter one.
    assert log == list(islice(advisor.chat_log(500), 400))
    records = [chat_record(i + 1, line) for i, line in enumerate(log)]
    found = lint(records, StandInTokenizer(), 16, 0)
    assert {cost.finding.rule for cost in found.costs} == {"L1", "L3"}


def test_the_later_half_is_served_from_what_the_earlier_half_left() -> None:
    # Four prompts of two blocks of 512 tokens: LRU with four blocks, all four distinct ones fit.
    rows = [[0, 1], [2, 3], [0, 1], [2, 4]]
    paths = block_paths(rows, [1024] * 4, 512)
    assert miss_ratio.hits_of_second_half(paths, 5) == {"lru": 3 * 512, "optimal": 3 * 512}
    # With three, [2, 3] leaves of [0, 1] its first block; [0, 1] then drops 3 and, with 0 1, keeps
    # 2: both rules hit 0 and then 2.
    assert miss_ratio.hits_of_second_half(paths, 3)["lru"] == 2 * 512


def test_a_whole_cached_prompt_counts_in_full() -> None:
    prompts: list[list[int]] = [[1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3, 5]]
    assert advisor._hit_rate(prompts, 4) == pytest.approx(4 / 12)
    assert advisor._hit_rate(prompts, 1) == pytest.approx(7 / 12)


@pytest.mark.peer
@pytest.mark.slow
def test_beside_kvlint_on_its_demo() -> None:
    reached: list[Any] = advisor._beside_kvlint()
    assert all(one.holds for one in reached)


@pytest.mark.peer
@pytest.mark.slow
def test_beside_kvcache_simulator_on_the_conversation_trace() -> None:
    assert all(one.holds for one in miss_ratio.run())
