"""The table that is printed, character by character where it matters."""

from __future__ import annotations

import math
from typing import Any

import pytest

from testbed.reports.comparison import compare
from testbed.reports.table import MAX_WIDTH, METRICS, comparison_table

LPM = {
    "hit_rate": 0.5,
    "clairvoyant_bound": 0.75,
    "sharing_bound": 0.875,
    "requests_per_s": 12.5,
    "output_tokens_per_s": 1234.4,
    "tpot_p50_s": 0.0251,
    "jain_index": math.nan,
    "max_service_gap": 0.0,
    "preemptions": 0,
    "refused": 2,
}
FCFS = {**LPM, "hit_rate": 0.25, "requests_per_s": 12.5, "tpot_p50_s": 0.1, "refused": 0}


def test_the_layout(make_sweep: Any) -> None:
    results = make_sweep(({"scheduler": "lpm"}, 0, LPM), ({"scheduler": "fcfs"}, 0, FCFS))
    assert comparison_table(compare(results)) == (
        "             hit   TPOT ms\n"
        "scheduler   rate       p50   refused\n"
        "---------  ------  --------  --------\n"
        "fcfs       0.250     100.0         0*\n"
        "lpm        0.500*     25.1*        2\n"
        "\n"
        "* best of its column\n"
        "clairv. bound: 0.75\n"
        "sharing bound: 0.875\n"
        "requests per s: 12.5\n"
        "out tok per s: 1,234.4\n"
        "gap, total tokens: 0\n"
        "preempted: 0\n"
    )


def test_one_run_shows_what_it_has(make_sweep: Any) -> None:
    table = comparison_table(compare(make_sweep(({"scheduler": "lpm"}, 0, LPM))))
    assert "lpm        0.500    0.750    0.875     12.50    1,234    25.10        2\n" in table
    assert "*" not in table
    assert "Jain" not in table


def test_seeds_are_averaged_with_an_interval_and_differences_are_paired(make_sweep: Any) -> None:
    results = make_sweep(
        *(({"scheduler": "a"}, seed, {"hit_rate": h}) for seed, h in enumerate([0.1, 0.2, 0.3])),
        *(({"scheduler": "b"}, seed, {"hit_rate": h}) for seed, h in enumerate([0.2, 0.3, 0.4])),
    )
    table = comparison_table(compare(results), baseline="a")
    # Half width 4.303 * 0.1 / sqrt 3; the paired difference is 0.1 at every seed.
    assert "a          0.200 ±0.248\n" in table
    assert "b          0.300 ±0.248*\n" in table
    assert "less a           rate\n" in table
    assert "b       +0.100 ±0.000\n" in table
    assert "± 95 % confidence interval of the mean over 3 seeds\n" in table


def test_unequal_numbers_of_seeds_are_told(make_sweep: Any) -> None:
    results = make_sweep(
        ({"scheduler": "a"}, 0, {"hit_rate": 0.1}),
        ({"scheduler": "a"}, 1, {"hit_rate": 0.2}),
        ({"scheduler": "b"}, 0, {"hit_rate": 0.2}),
    )
    assert "over 1 to 2 seeds" in comparison_table(compare(results))


def test_it_is_never_wider_than_a_terminal(make_sweep: Any) -> None:
    runs = [
        (
            {"scheduler": "a_policy_whose_name_goes_on_and_on_and_on" * 2 + str(policy)},
            seed,
            {metric.column: 1234.5 * (1 + policy) + seed for metric in METRICS},
        )
        for policy in range(2)
        for seed in range(2)
    ]
    table = comparison_table(compare(make_sweep(*runs)), baseline=runs[0][0]["scheduler"])
    assert max(map(len, table.splitlines())) <= MAX_WIDTH
    for metric in METRICS:
        assert table.count(metric.heading[1]) >= 2


def test_everything_equal_to_the_best_is_marked(make_sweep: Any) -> None:
    results = make_sweep(
        *(({"scheduler": s}, 0, {"hit_rate": h}) for s, h in [("a", 0.5), ("b", 0.5), ("c", 0.1)])
    )
    assert comparison_table(compare(results)).count("0.500*") == 2


def test_an_unknown_baseline_is_an_error(make_sweep: Any) -> None:
    comparison = compare(make_sweep(({"scheduler": "lpm"}, 0, LPM)))
    with pytest.raises(ValueError, match="baseline='fcfs': one of lpm is needed"):
        comparison_table(comparison, baseline="fcfs")


def test_oracles_are_marked_and_explained(make_sweep: Any) -> None:
    results = make_sweep(
        ({"scheduler": "oracle"}, 0, LPM),
        ({"scheduler": "lpm"}, 0, FCFS),
        ({"scheduler": "x" * 50}, 0, FCFS),
    )
    comparison = compare(results)
    assert comparison.oracles == {"oracle"}
    table = comparison_table(comparison, baseline="lpm")
    assert table.count("oracle† ") == 2
    assert "lpm† " not in table and "† oracle: it is told what no real system knows\n" in table


def test_a_long_label_keeps_its_mark(make_sweep: Any) -> None:
    options = {"scheduler": "oracle", "workload": "w" * 60}
    comparison = compare(make_sweep((options, 0, LPM)), by=["workload", "scheduler"])
    first = comparison_table(comparison).splitlines()[3].split()[0]
    assert first == "w" * 36 + "...†" and len(first) == 40


def test_a_star_is_for_the_best_of_its_workload(make_sweep: Any) -> None:
    results = make_sweep(
        *(
            ({"workload": workload, "scheduler": scheduler}, 0, {"hit_rate": rate})
            for workload, scheduler, rate in [
                ("chat", "fcfs", 0.7),
                ("chat", "lpm", 0.8),
                ("rag", "fcfs", 0.2),
                ("rag", "lpm", 0.1),
            ]
        )
    )
    table = comparison_table(compare(results), baseline="fcfs")
    assert table == (
        "                      hit\n"
        "workload scheduler   rate\n"
        "------------------  ------\n"
        "chat fcfs           0.700\n"
        "chat lpm            0.800*\n"
        "\n"
        "rag fcfs            0.200*\n"
        "rag lpm             0.100\n"
        "\n"
        "              hit\n"
        "less fcfs    rate\n"
        "---------  ------\n"
        "chat lpm   +0.100\n"
        "rag lpm    -0.100\n"
        "\n"
        "* best of its column, among the rows of its workload\n"
    )


def test_where_all_are_equal_there_is_no_star(make_sweep: Any) -> None:
    results = make_sweep(
        *(({"scheduler": scheduler}, 0, {"hit_rate": 0.5}) for scheduler in ("a", "b"))
    )
    assert "0.500*" not in comparison_table(compare(results))
