"""Every number of the summary, by hand or against a token-by-token replay."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.core.records import RunRecord
from testbed.metrics import summary as summary_module
from testbed.metrics.bounds import Bound, RunBounds
from testbed.metrics.summary import (
    SUMMARY_COLUMNS,
    goodput,
    inter_token_latencies,
    summarize,
    weighted_quantile,
)

MakeRecord = Callable[..., RunRecord]


@pytest.fixture
def record(make_record: MakeRecord) -> RunRecord:
    """Request 1 is preempted at step 3 and comes back at step 5; step 4 only prefills request 2."""
    steps = [
        # step, start, end, decode_rows, free, evictable, locked, evicted
        (1, 1.0, 2.0, 0, 6, 0, 0, 0),
        (2, 2.0, 2.5, 1, 4, 1, 1, 0),
        (3, 2.5, 3.0, 1, 3, 2, 2, 3),
        (4, 3.0, 5.0, 0, 3, 3, 1, 0),
        (5, 6.0, 7.0, 1, 2, 2, 2, 1),
        (6, 7.0, 7.5, 2, 2, 0, 2, 0),
    ]
    columns = ("step", "start_s", "end_s", "decode_rows")
    columns += ("free_pages", "evictable_pages", "locked_pages", "evicted_pages")
    common = {"status": "finished", "client": "default"}
    return make_record(
        requests=[
            {
                **common,
                **{"request": 1, "arrival_s": 0.5, "admitted_s": 1.0, "admitted_step": 1},
                **{"first_token_s": 2.0, "finish_s": 7.5, "decode_spans": "1-3 5-6"},
                **{"prompt_tokens": 10, "output_tokens": 5, "cached_tokens": 2},
                **{"rehit_tokens": 3, "recomputed_tokens": 5, "preemptions": 1},
                **{"chunk_reread_tokens": 20, "routed_match_tokens": 4},
            },
            {
                **common,
                **{"request": 2, "arrival_s": 2.5, "admitted_s": 3.0, "admitted_step": 4},
                **{"first_token_s": 5.0, "finish_s": 7.5, "decode_spans": "4-6"},
                **{"prompt_tokens": 30, "output_tokens": 3, "cached_tokens": 8},
            },
            {"request": 3, "status": "refused", "arrival_s": 1.0, "prompt_tokens": 99}
            | {"admitted_step": -1, "admitted_s": -1.0, "first_token_s": -1.0, "finish_s": -1.0},
        ],
        steps=[dict(zip(columns, row, strict=True)) for row in steps],
        num_pages=10,
        page_size=2,
    )


def test_by_hand(record: RunRecord) -> None:
    expected = {
        "requests": 3,
        "finished": 2,
        "refused": 1,
        "skipped_lines": 0,
        "preemptions": 1,
        "makespan_s": 7.0,
        "prompt_tokens": 40,
        "output_tokens": 8,
        "cached_tokens": 10,
        "hit_rate": 10 / 40,
        "hit_rate_with_rehits": 13 / 48,
        "hit_rate_with_chunk_rereads": 30 / 60,
        "router_match_rate": 4 / 40,
        "sharing_bound": 0.75,
        "best_order_bound": 0.875,
        "clairvoyant_bound": 0.5,
        # TTFT 1.5, 2.5; TPOT 5.5/4, 2.5/2; E2E 7.0, 5.0.
        "ttft_mean_s": 2.0,
        "ttft_p50_s": 2.0,
        "ttft_p90_s": 2.4,
        "ttft_p99_s": 2.49,
        "tpot_mean_s": (1.375 + 1.25) / 2,
        "tpot_p50_s": (1.375 + 1.25) / 2,
        "tpot_p90_s": 1.25 + 0.9 * 0.125,
        "tpot_p99_s": 1.25 + 0.99 * 0.125,
        "e2e_mean_s": 6.0,
        "e2e_p50_s": 6.0,
        "e2e_p90_s": 6.8,
        "e2e_p99_s": 6.98,
        # Request 1: tokens at 2, 2.5, 3 | 7, 7.5. Request 2: 5, 7, 7.5.
        # Gaps 0.5 0.5 4 0.5 2 0.5; sorted 0.5 0.5 0.5 0.5 2 4.
        "itl_mean_s": 8 / 6,
        "itl_p50_s": 0.5,
        "itl_p90_s": 3.0,
        "itl_p99_s": 2 + 0.95 * 2,
        "requests_per_s": 2 / 7,
        "output_tokens_per_s": 8 / 7,
        "total_tokens_per_s": 48 / 7,
        "evicted_tokens": 8,
        "rehit_tokens": 3,
        "recomputed_tokens": 5,
        "chunk_reread_tokens": 20,
        # Running 4 5 5 4 6 8 and cached 0 2 4 4 4 2 of 10 pages, for 1 0.5 0.5 2 1 0.5 s.
        "pool_running_mean": (4 + 2.5 + 2.5 + 8 + 6 + 4) / 5.5 / 10,
        "pool_running_max": 0.8,
        "pool_cached_mean": (0 + 1 + 2 + 8 + 4 + 1) / 5.5 / 10,
        "pool_cached_max": 0.4,
        "max_service_gap": 0.0,
        "max_extended_service_gap": 0.0,
        "jain_index": math.nan,
        # There is only one client.
        "service_difference_max": 0.0,
        "service_difference_mean": 0.0,
        "fair_share_distance": 0.0,
    }
    summary = summarize(record, RunBounds(Bound(30, 40), Bound(20, 40)), Bound(35, 40))
    assert list(summary) == list(SUMMARY_COLUMNS)
    assert summary == pytest.approx(expected, nan_ok=True)


def test_bounds_that_were_not_computed_are_nan(record: RunRecord) -> None:
    summary = summarize(record)
    bounds = ("sharing_bound", "best_order_bound", "clairvoyant_bound")
    assert all(math.isnan(summary[name]) for name in bounds)


def test_the_pairwise_gap_is_left_out_for_too_many_clients(
    make_record: MakeRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = make_record([{"client": "a"}, {"client": "b"}], [])
    monkeypatch.setattr(summary_module, "MAX_GAP_CLIENTS", 1)
    assert math.isnan(summarize(record)["max_service_gap"])
    monkeypatch.setattr(summary_module, "MAX_GAP_CLIENTS", 2)
    assert summarize(record)["max_service_gap"] == 0.0


def test_an_empty_run_has_no_rates(make_record: MakeRecord) -> None:
    summary = summarize(make_record([], []))
    assert summary["requests"] == 0
    assert math.isnan(summary["hit_rate"])
    assert math.isnan(summary["itl_p50_s"])


def test_goodput_counts_requests_within_both_limits(record: RunRecord) -> None:
    assert goodput(record, ttft_s=2.5, tpot_s=1.375) == 2 / 7
    assert goodput(record, ttft_s=2.0, tpot_s=1.375) == 1 / 7
    assert goodput(record, ttft_s=2.5, tpot_s=1.3) == 1 / 7
    assert goodput(record, ttft_s=0.0, tpot_s=9.0) == 0.0


def token_times(record: RunRecord) -> list[list[float]]:
    """When each request's tokens came, by walking its steps one by one."""
    end = dict(zip(record.steps["step"], record.steps["end_s"], strict=True))
    rows = dict(zip(record.steps["step"], record.steps["decode_rows"], strict=True))
    times = []
    for spans in record.requests["decode_spans"]:
        own = []
        for span in spans.split():
            first, last = map(int, span.split("-"))
            own += [end[s] for s in range(first, last + 1) if s == first or rows[s] > 0]
        times.append(own)
    return times


@pytest.mark.parametrize("seed", range(20))
def test_inter_token_latencies_equal_a_replay(random_record: MakeRecord, seed: int) -> None:
    record = random_record(np.random.default_rng(seed), num_requests=20, clients=2)
    values, weights = inter_token_latencies(record)
    expected = np.concatenate([np.diff(times) for times in token_times(record)])
    assert sorted(np.repeat(values, weights)) == pytest.approx(sorted(expected))


def test_replicas_keep_their_own_steps(random_record: MakeRecord) -> None:
    parts = [
        random_record(np.random.default_rng(seed), num_requests=12, clients=1, replica=seed)
        for seed in (0, 1)
    ]
    together = RunRecord(
        requests={k: np.concatenate([p.requests[k] for p in parts]) for k in parts[0].requests},
        steps={k: np.concatenate([p.steps[k] for p in parts]) for k in parts[0].steps},
        decisions=None,
        counters=parts[0].counters,
    )
    expected = np.concatenate([np.diff(t) for part in parts for t in token_times(part)])
    assert sorted(np.repeat(*inter_token_latencies(together))) == pytest.approx(sorted(expected))


def test_spans_that_contradict_the_token_count_are_an_error(make_record: MakeRecord) -> None:
    steps = [{"step": 1, "end_s": 1.0}, {"step": 2, "end_s": 2.0, "decode_rows": 1}]
    request: dict[str, Any] = {"request": 7, "output_tokens": 3, "decode_spans": "1-2"}
    message = "request 7 has 2 tokens by its spans '1-2' but output_tokens=3"
    with pytest.raises(ValueError, match=message):
        inter_token_latencies(make_record([request], steps))
    with pytest.raises(ValueError, match="replica 0 has a span at a step not in steps"):
        inter_token_latencies(make_record([{**request, "decode_spans": "5-5"}], steps))
    with pytest.raises(ValueError, match="FIRST-LAST pairs"):
        inter_token_latencies(make_record([{**request, "decode_spans": "1-"}], steps))


@given(
    st.lists(st.tuples(st.floats(-9, 9), st.integers(0, 4)), max_size=8),
    st.sampled_from([0.0, 0.1, 0.5, 0.9, 0.99, 1.0]),
)
def test_weighted_quantile_equals_the_quantile_of_the_repeated_values(
    samples: list[tuple[float, int]], q: float
) -> None:
    values = np.array([value for value, _ in samples])
    weights = np.array([weight for _, weight in samples], dtype=np.int64)
    repeated = np.repeat(values, weights)
    result = weighted_quantile(values, weights, q)
    if len(repeated):
        assert result == pytest.approx(np.quantile(repeated, q), abs=1e-12)
    else:
        assert math.isnan(result)
