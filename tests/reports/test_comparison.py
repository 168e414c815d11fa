"""Which runs make one row, and what is said about their seeds."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from testbed.metrics.intervals import Z_975, mean_interval, t_975
from testbed.reports.comparison import compare


def test_seeds_of_one_configuration_are_one_row(make_sweep: Any) -> None:
    results = make_sweep(
        ({"scheduler": "lpm", "cache": 1}, 0, {"hit_rate": 1.0}),
        ({"scheduler": "lpm", "cache": 1}, 1, {"hit_rate": 2.0}),
        ({"scheduler": "lpm", "cache": 1}, 2, {"hit_rate": 3.0}),
        ({"scheduler": "fcfs", "cache": 1}, 2, {"hit_rate": 7.0}),
    )
    comparison = compare(results)
    # The cache is the same everywhere, so it is no part of the label.
    assert comparison.by == ("scheduler",)
    assert list(comparison.groups) == ["fcfs", "lpm"]
    mean, half_width = comparison.interval("lpm", "hit_rate")
    assert mean == 2.0
    # Standard deviation 1; the 97.5 % quantile of t with 2 degrees of freedom is 4.303.
    assert half_width == pytest.approx(4.303 / math.sqrt(3))
    assert math.isnan(comparison.interval("fcfs", "hit_rate").half_width)


def test_differences_are_paired_by_seed(make_sweep: Any) -> None:
    results = make_sweep(
        *(({"scheduler": "lpm"}, seed, {"hit_rate": h}) for seed, h in enumerate([0.3, 0.5, 0.4])),
        *(({"scheduler": "fcfs"}, seed, {"hit_rate": h}) for seed, h in [(0, 0.2), (1, 0.4)]),
    )
    mean, half_width = compare(results).difference("lpm", "fcfs", "hit_rate")
    # Seed 2 has no partner; the others gain 0.1 each, however much they differ among themselves.
    assert mean == pytest.approx(0.1)
    assert half_width == pytest.approx(0.0, abs=1e-12)


def test_labels_are_in_order_of_their_values_and_numbers_sort_as_numbers(make_sweep: Any) -> None:
    results = make_sweep(
        ({"scheduler": "lpm", "cache.tokens": 1000}, 0, {}),
        ({"scheduler": "lpm", "cache.tokens": 200}, 0, {}),
        ({"scheduler": "lpm"}, 0, {}),
        ({"scheduler": "fcfs", "cache.tokens": 1000}, 0, {}),
    )
    labels = list(compare(results).groups)
    assert labels == ["fcfs 1000", "lpm 200", "lpm 1000", "lpm -"]
    assert next(iter(compare(results, by=["cache.tokens", "scheduler"]).groups)) == "200 lpm"


def test_without_differing_overrides_the_scheduler_names_the_row(make_sweep: Any) -> None:
    assert compare(make_sweep(({"scheduler": "lpm"}, 0, {}))).by == ("scheduler",)


def test_without_a_scheduler_each_run_is_a_row(make_sweep: Any) -> None:
    comparison = compare(make_sweep(({}, 0, {}), ({}, 0, {})))
    assert list(comparison.groups) == ["0", "1"]


def test_an_unknown_option_and_an_ambiguous_label_are_errors(make_sweep: Any) -> None:
    results = make_sweep(
        ({"scheduler": "lpm", "k": 1}, 0, {}), ({"scheduler": "lpm", "k": 2}, 0, {})
    )
    with pytest.raises(
        ValueError, match="by='schedule': one of the options is needed: scheduler, k"
    ):
        compare(results, by=["schedule"])
    with pytest.raises(ValueError, match="runs 0, 1 are all 'lpm' with seed 0"):
        compare(results, by=["scheduler"])


def test_quantiles_of_t() -> None:
    # From the usual tables.
    for degrees, expected in [(1, 12.706), (4, 2.776), (30, 2.042), (40, 2.021), (120, 1.980)]:
        assert t_975(degrees) == pytest.approx(expected, abs=6e-4)
    values = [t_975(degrees) for degrees in range(1, 200)]
    assert np.all(np.diff(values) < 0) and values[-1] > Z_975
    with pytest.raises(ValueError, match="degrees=0: at least 1"):
        t_975(0)


def test_the_interval_of_few_values() -> None:
    assert mean_interval([4.0])[0] == 4.0 and math.isnan(mean_interval([4.0])[1])
    assert all(math.isnan(value) for value in mean_interval([]))
    # n = 2: mean 1, standard deviation sqrt 2, half width 12.706.
    assert mean_interval([0.0, 2.0]) == pytest.approx((1.0, 12.706))


def test_rows_of_one_workload_are_rivals(make_sweep: Any) -> None:
    results = make_sweep(
        *(
            ({"scheduler": scheduler, "workload.rate": rate}, 0, {"hit_rate": 0.1})
            for scheduler in ("lpm", "fcfs")
            for rate in (4, 2)
        )
    )
    comparison = compare(results)
    # The workload's options come first, so that its rows stand together.
    assert comparison.by == ("workload.rate", "scheduler")
    assert comparison.rivals() == [["2 fcfs", "2 lpm"], ["4 fcfs", "4 lpm"]]
    assert comparison.baselines("fcfs") == {
        "2 fcfs": "2 fcfs",
        "2 lpm": "2 fcfs",
        "4 fcfs": "4 fcfs",
        "4 lpm": "4 fcfs",
    }
    assert comparison.baselines("2 lpm") == {"2 fcfs": "2 lpm", "2 lpm": "2 lpm"}
    with pytest.raises(ValueError, match="baseline='vtc': one of 2 fcfs, 2 lpm, 4 fcfs, 4 lpm, fc"):
        comparison.baselines("vtc")


def test_a_mean_over_different_workloads_is_refused(make_sweep: Any) -> None:
    results = make_sweep(
        ({"scheduler": "lpm", "workload": "rag"}, 0, {}),
        ({"scheduler": "lpm", "workload": "chat"}, 1, {}),
    )
    with pytest.raises(ValueError, match="runs 0 and 1 are both 'lpm' but serve different worklo"):
        compare(results, by=["scheduler"])


def test_workloads_that_the_labels_do_not_name_are_numbered(make_sweep: Any) -> None:
    results = make_sweep(
        ({"experiment": "a", "workload": "x"}, 0, {}), ({"experiment": "b", "workload": "y"}, 0, {})
    )
    assert list(compare(results, by=["experiment"]).workloads.values()) == ["#1", "#2"]


def test_seeds_that_change_nothing_are_one_sample(make_sweep: Any) -> None:
    def run(policy: str, seed: int, rate: float, drawn: int) -> tuple[dict[str, Any], int, Any]:
        options = {"scheduler": policy, "workload": {"rate": 1.0, "seed": drawn}}
        return options, seed, {"hit_rate": rate}

    comparison = compare(
        make_sweep(
            *(run("a", seed, 0.1, 5) for seed in range(3)),
            *(run("b", seed, 0.1 * seed, seed) for seed in range(3)),
        ),
        by=["scheduler"],
    )
    assert comparison.samples("a") == [0] and comparison.samples("b") == [0, 1, 2]
    assert comparison.samples("a", "b") == [0, 1, 2]
    assert math.isnan(comparison.interval("a", "hit_rate").half_width)
    assert comparison.seed_notes() == ["seeds that change nothing count once (1 of 2 rows)"]
