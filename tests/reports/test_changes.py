"""The table of changes and its verdicts."""

from __future__ import annotations

import pandas as pd
import pytest

from testbed.metrics.pairing import Pairs
from testbed.reports.changes import changes_table, judge_pairs


def pairs(**columns: tuple[list[float], list[float]]) -> Pairs:
    first = pd.DataFrame({name: values[0] for name, values in columns.items()})
    second = pd.DataFrame({name: values[1] for name, values in columns.items()})
    return Pairs(("scheduler",), {"lpm": (first, second)}, {"eviction": ("lru", "lfu")})


def test_the_layout() -> None:
    # TTFT: 10, 20 and 30 ms longer, half width 4.303 * 10 / sqrt(3) = 24.8 ms: noise.
    some = pairs(
        hit_rate=([0.5, 0.5, 0.5], [0.6, 0.6, 0.6]),
        ttft_p50_s=([1.0, 1.0, 1.0], [1.01, 1.02, 1.03]),
        itl_p99_s=([0.02, 0.03, 0.04], [0.03, 0.04, 0.05]),
        refused=([0, 0, 0], [0, 0, 0]),
    )
    assert changes_table(some, judge_pairs(some)) == (
        "lpm (3 pairs)  before  after       difference          verdict\n"
        "-------------  ------  -----  ---------------  ------  ------------\n"
        "hit rate        0.500  0.600  +0.1000 ±0.0000  +20.0%  better\n"
        "TTFT s p50       1.00   1.02    +0.020 ±0.025   +2.0%  within noise\n"
        "ITL ms p99         30     40           +10 ±0  +33.3%  worse\n"
        "equal in every pair: refused\n"
        "\n"
        "changed: eviction: lru -> lfu\n"
        "difference: mean over the pairs ± its 95 % confidence interval (paired t)\n"
        "each verdict has 95 % confidence by itself: were all 3 differences noise, 0.15 of them "
        "would be taken for changes, half of these for worse\n"
        "verdicts: 1 better, 1 within noise, 1 worse, 1 equal\n"
    )


def test_one_pair_says_that_it_has_no_interval() -> None:
    one = pairs(hit_rate=([0.5], [0.6]))
    table = changes_table(one, judge_pairs(one))
    assert "lpm (1 pair)" in table and "undecided" in table
    assert "a single pair has no interval: left undecided" in table
    table = changes_table(one, judge_pairs(one, margin=0.1), margin=0.1)
    assert "better" in table and "judged by the margin of 10.0% alone" in table


def test_only_the_named_metrics_are_judged() -> None:
    some = pairs(hit_rate=([0.5], [0.6]), refused=([0], [1]))
    assert [j.metric.column for j in judge_pairs(some, ["refused"])] == ["refused"]
    with pytest.raises(ValueError, match="metric='speed': one of hit_rate, requests_per_s"):
        judge_pairs(some, ["speed"])


@pytest.mark.filterwarnings("error")
def test_what_is_missing_or_infinite_is_told() -> None:
    nan, inf = float("nan"), float("inf")
    some = pairs(
        hit_rate=([0.5, 0.5, 0.5, 0.5], [0.6, nan, nan, nan]),
        ttft_p50_s=([1.0, 1.0, 1.0, 1.0], [inf, 1.0, 1.0, 1.0]),
        ttft_p99_s=([2.0, 2.0, 2.0, 2.0], [nan, nan, nan, nan]),
        refused=([nan, nan, nan, nan], [1, 1, 1, 1]),
    )
    del some.rows["lpm"][1]["ttft_p99_s"]
    judgements = judge_pairs(some, margin=0.5)
    lines = changes_table(some, judgements, margin=0.5).splitlines()
    assert [line.split() for line in lines[2:6]] == [
        ["hit", "rate", "0.500", "0.600", "+0.1000", "+20.0%", "lost"],
        ["TTFT", "s", "p50", "1", "inf", "+inf", "worse"],
        ["TTFT", "s", "p99", "2", "-", "-", "lost"],
        ["refused", "-", "1", "-", "gained"],
    ]
    assert "hit rate: measured in 4 before, 1 after; 1 pair of 4" in lines
    assert "TTFT s p99: measured in 4 before, 0 after; 0 pairs of 4" in lines
    assert "refused: measured in 0 before, 4 after; 0 pairs of 4" in lines
    assert [j.change.failed for j in judgements] == [True, True, True, False]


def test_runs_without_a_partner_and_seeds_without_effect_are_told() -> None:
    frame = pd.DataFrame({"hit_rate": [0.5]})
    lone = Pairs(("k",), {"a": (frame, frame)}, {}, ("a seed 1",), ("a seed 2",), {"a": (3, 4)})
    notes = changes_table(lone, judge_pairs(lone)).splitlines()
    assert "missing after: a seed 1" in notes and "new, without one before: a seed 2" in notes
    assert "a: seeds 3, 4 change nothing, and are no sample of their own" in notes
    # Nothing differs, so that nothing waits for an interval.
    assert "single pair" not in " ".join(notes)
    fixed = Pairs(("k",), {"a": (frame, frame)}, {}, one_workload=("a",))
    assert "a: the same prompts under every seed" in changes_table(fixed, judge_pairs(fixed))
