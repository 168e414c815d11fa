"""Tables over seeds, and the lines drawn from them."""

from __future__ import annotations

import math
from typing import Any

import pytest
from matplotlib.figure import Figure

from testbed.reports.curves import draw_curves, interval_table, runs_table


@pytest.fixture
def sweep(make_sweep: Any) -> Any:
    return make_sweep(
        ({"scheduler": "lpm", "arrivals": {"rate": 2.0}}, 0, {"hit_rate": 0.4}),
        ({"scheduler": "lpm", "arrivals": {"rate": 2.0}}, 1, {"hit_rate": 0.6}),
        ({"scheduler": "lpm", "arrivals": {"rate": 1.0}}, 0, {"hit_rate": 0.8}),
        ({"scheduler": "oracle", "arrivals": {"rate": 1.0}}, 0, {"hit_rate": 0.9}),
    )


def test_a_row_is_a_mean_over_seeds_with_its_interval(sweep: Any) -> None:
    by = ["scheduler", "arrivals.rate"]
    table = interval_table(runs_table(sweep, by), by, ["hit_rate"])
    assert table[[*by, "seeds", "hit_rate"]].values.tolist() == [
        ["lpm", 1.0, 1, 0.8],
        ["lpm", 2.0, 2, 0.5],
        ["oracle", 1.0, 1, 0.9],
    ]
    # Two values 0.2 apart: t of one degree of freedom times 0.1.
    assert table["hit_rate_half_width"][1] == pytest.approx(12.706 * 0.1)
    assert math.isnan(table["hit_rate_half_width"][0])
    assert table["oracle"].tolist() == [False, False, True]


def test_runs_without_the_option_are_refused_by_its_name(sweep: Any) -> None:
    with pytest.raises(ValueError, match=r"replicas: no such option"):
        runs_table(sweep, ("replicas",))


def test_runs_that_nothing_tells_apart_are_refused(sweep: Any) -> None:
    runs = runs_table(sweep, ())
    with pytest.raises(ValueError, match=r"runs 0, 2: scheduler=lpm with one seed"):
        interval_table(runs, ["scheduler"], ["hit_rate"])


def test_lines_go_through_the_means_in_order_of_x(sweep: Any) -> None:
    by = ["scheduler", "arrivals.rate"]
    axes = Figure().subplots()
    table = interval_table(runs_table(sweep, by), by, ["hit_rate"])
    draw_curves(axes, table.iloc[::-1], "arrivals.rate", "hit_rate", "scheduler", scale=100)
    lines = {line.get_label(): line.get_xydata().tolist() for line in axes.lines}
    assert lines == {"oracle†": [[1.0, 90.0]], "lpm": [[1.0, 80.0], [2.0, 50.0]]}
