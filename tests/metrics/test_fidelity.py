"""Predicted beside measured, by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest

from testbed.core.records import RunRecord
from testbed.metrics.fidelity import FIGURES, compare_runs, served_figures


@pytest.fixture
def served(make_record: Any) -> Any:
    def build(slower: float = 1.0, cached: int = 4) -> RunRecord:
        rows = [
            {
                "request": i,
                "arrival_s": 10.0 + i,
                "first_token_s": 10.0 + i + slower * (i + 1),
                "finish_s": 10.0 + i + slower * (i + 1) + slower * 4.0,
                "prompt_tokens": 10,
                "cached_tokens": cached if i == 2 else 0,
                "output_tokens": 5,
            }
            for i in range(3)
        ]
        rows.append({"request": 3, "arrival_s": 11.5, "prompt_tokens": 99, "status": "refused"})
        rows[-1]["admitted_step"] = -1
        rows.append({**rows[0], "request": 4, "output_tokens": 1, "finish_s": 11.0})
        return make_record(rows, [])

    return build


def test_figures_of_one_run(served: Any) -> None:
    assert served_figures(served()) == {
        # 16 tokens from 10.0 to 12 + 3 + 4 = 19.0.
        "output_tokens_per_s": pytest.approx(16 / 9),
        "makespan_s": 9.0,
        # TTFT 1, 2, 3 and again 1.
        "ttft_p50_s": 1.5,
        "ttft_p95_s": pytest.approx(2.85),
        "tpot_p50_s": 1.0,
        "tpot_p95_s": 1.0,
        "hit_rate": pytest.approx(4 / 40),
    }


def test_an_error_is_held_against_the_median_run(served: Any) -> None:
    runs = [served(2.0), served(1.0), served(0.9, 3)]
    rows = compare_runs("w", 3 * [served(1.1, 5)], runs)
    assert [row.figure for row in rows] == list(FIGURES)
    by_figure = {row.figure: row for row in rows}
    tpot = by_figure["tpot_p50_s"]
    assert (tpot.workload, tpot.measured) == ("w", 1.0)
    assert (tpot.error, tpot.spread) == (pytest.approx(0.1), pytest.approx(1.0))
    hit_rate = by_figure["hit_rate"]
    assert (hit_rate.error, hit_rate.spread) == (pytest.approx(1 / 40), pytest.approx(1 / 40))


def test_each_run_is_held_against_what_was_predicted_of_it(served: Any) -> None:
    measured = [served(1.0), served(2.0), served(4.0)]
    predicted = [served(1.1), served(2.6), served(3.0)]
    tpot = {row.figure: row for row in compare_runs("w", predicted, measured)}["tpot_p50_s"]
    # +10 %, +30 %, -25 %; 4.0 is twice as far from the median as 1.0.
    assert (tpot.predicted, tpot.measured) == (pytest.approx(2.6), 2.0)
    assert (tpot.error, tpot.spread) == (pytest.approx(0.1), pytest.approx(1.0))


def test_a_run_in_which_nothing_finished_has_no_figures(make_record: Any) -> None:
    record = make_record([{"status": "refused", "admitted_step": -1}], [])
    assert all(math.isnan(value) for value in served_figures(record).values())
