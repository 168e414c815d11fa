from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from testbed.metrics.loading import Results
from testbed.reports.ordering import (
    gap_figure,
    gap_table,
    order_grid_figure,
    order_grid_table,
    plot_gaps,
    plot_order_grid,
)
from tests.reports.conftest import MakeSweep

Run = tuple[dict[str, Any], int, dict[str, float]]
RATES = {
    # order: sharing bound, hit rate under dfs, hit rate under fcfs
    "canonical": (0.9, 0.85, 0.8),
    "random_per_request": (0.5, 0.3, 0.4),
    ("timestamp", "system"): (0.0, 0.0, 0.0),
}
SCHEDULERS = ("dfs", "fcfs")


def run_of(order: Any, scheduler: str, seed: int, bound: float, rate: float) -> Run:
    options = {
        "workload": {"order": list(order) if isinstance(order, tuple) else order},
        "scheduler": scheduler,
        "cache": {"tokens": 25_000},
    }
    return options, seed, {"sharing_bound": bound + 0.01 * seed, "hit_rate": rate}


@pytest.fixture
def results(make_sweep: MakeSweep) -> Results:
    return make_sweep(
        *(
            run_of(order, scheduler, seed, bound, rate)
            for order, (bound, *rates) in RATES.items()
            for scheduler, rate in zip(SCHEDULERS, rates, strict=True)
            for seed in (0, 1)
        )
    )


def test_gaps_of_each_order(results: Results) -> None:
    """The best bound of a seed is that of its canonical runs: 0.9 and 0.91."""
    table = gap_table(results).set_index("order")
    assert list(table.index) == ["canonical", "random_per_request", "timestamp > system"]
    assert set(table["scheduler"]) == {"fcfs"}
    row = table.loc["random_per_request"]
    assert row[["best_bound", "bound", "depth_first", "measured"]].tolist() == pytest.approx(
        [0.905, 0.505, 0.3, 0.4]
    )
    assert row[["template", "capacity", "scheduling"]].tolist() == pytest.approx([0.4, 0.205, -0.1])
    assert (row["seeds"], table.loc["canonical", "template"]) == (2, 0.0)


def test_the_grid_has_a_line_for_each_order_and_scheduler(results: Results) -> None:
    table = order_grid_table(results)
    assert len(table) == 6
    figure = order_grid_figure(table)
    assert len(figure.axes[0].containers) == 6
    keys = [text.get_text() for text in figure.legends[0].get_texts()]
    assert keys == ["dfs", "fcfs", "canonical", "random per request", "timestamp > system"]


def test_bars_of_one_order_end_at_the_best_bound(results: Results) -> None:
    table = gap_table(results)
    figure = gap_figure(table)
    ends = [bar.get_x() + bar.get_width() for bar in figure.axes[0].patches if bar.get_y() < 0.5]
    assert max(ends) == pytest.approx(0.905)


def test_files_are_written_and_equal_each_time(results: Results, tmp_path: Path) -> None:
    for plot in (plot_order_grid, plot_gaps):
        first = plot(results, tmp_path / "a")
        assert [path.suffix for path in first] == [".pdf", ".png", ".csv"]
        second = plot(results, tmp_path / "b")
        assert [p.read_bytes() for p in first] == [p.read_bytes() for p in second]


def test_scrambled_is_a_name_for_an_order(make_sweep: MakeSweep) -> None:
    runs = make_sweep(
        *(
            (
                {"workload": {"scrambled": s}, "scheduler": "dfs", "cache": {"tokens": 1}},
                0,
                {"sharing_bound": 0.5, "hit_rate": 0.5},
            )
            for s in (False, True)
        )
    )
    assert order_grid_table(runs)["order"].tolist() == ["fixed", "scrambled"]


def test_what_is_missing_is_named(make_sweep: MakeSweep) -> None:
    alone = make_sweep(run_of("canonical", "fcfs", 0, 0.9, 0.8))
    with pytest.raises(ValueError, match="none with scheduler=dfs, canonical"):
        gap_table(alone)


def test_runs_without_an_order_are_refused(make_sweep: MakeSweep) -> None:
    options = {"scheduler": "fcfs", "cache": {"tokens": 1}}
    with pytest.raises(ValueError, match=r"workload\.order or workload\.scrambled"):
        order_grid_table(make_sweep((options, 0, {"sharing_bound": 1.0, "hit_rate": 1.0})))
