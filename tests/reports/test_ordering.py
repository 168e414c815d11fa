from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from testbed.core.records import REQUEST_COLUMNS, STEP_COLUMNS, RunRecord, columns_of
from testbed.metrics.loading import Results
from testbed.reports.comparison import compare
from testbed.reports.gap_lines import gap_lines
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
BEST = 0.95
SCHEDULERS = ("dfs", "fcfs")


def run_of(order: Any, scheduler: str, seed: int, bound: float, rate: float) -> Run:
    options = {
        "workload": {"order": list(order) if isinstance(order, tuple) else order},
        "scheduler": scheduler,
        "cache": {"tokens": 25_000},
    }
    summary = {"sharing_bound": bound + 0.01 * seed, "hit_rate": rate}
    return options, seed, summary | {"best_order_bound": BEST + 0.01 * seed}


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
    """The best order's bounds of the two seeds, 0.95 and 0.96, are of no order that was run."""
    table = gap_table(results).set_index("order")
    assert list(table.index) == ["canonical", "random_per_request", "timestamp > system"]
    assert set(table["scheduler"]) == {"fcfs"}
    row = table.loc["random_per_request"]
    assert row[["best_bound", "bound", "depth_first", "measured"]].tolist() == pytest.approx(
        [0.955, 0.505, 0.3, 0.4]
    )
    gaps = ["template", "capacity", "scheduling"]
    assert row[gaps].tolist() == pytest.approx([0.45, 0.205, -0.1])
    assert row["seeds"] == 2
    assert table.loc["canonical", "template"] == pytest.approx(0.05)


def test_the_template_gap_needs_no_other_order_beside_it(make_sweep: MakeSweep) -> None:
    runs = [run_of("random_per_request", name, 0, 0.5, 0.4) for name in SCHEDULERS]
    (row,) = gap_table(make_sweep(*runs)).to_dict("records")
    assert (row["template"], row["capacity"], row["scheduling"]) == pytest.approx((0.45, 0.1, 0.0))


def test_workloads_without_an_order_have_two_gaps(make_sweep: MakeSweep) -> None:
    """Neither do they set the size of their cache, which is then what the run was given."""
    rates = {("judge", "dfs"): 0.7, ("judge", "fcfs"): 0.6, ("file", "dfs"): 0.2}
    rates |= {("file", "fcfs"): 0.2, ("file", "lpm"): 0.1}
    empty = RunRecord(
        columns_of([], REQUEST_COLUMNS),
        columns_of([], STEP_COLUMNS),
        None,
        {"num_pages": 10, "page_size": 16},
    )
    results = make_sweep(
        *(
            (
                {
                    "workload": {"name": workload},
                    "scheduler": scheduler,
                    "cache": {"tokens": None},
                },
                0,
                {"sharing_bound": 0.8, "best_order_bound": math.nan, "hit_rate": rate},
                empty,
            )
            for (workload, scheduler), rate in rates.items()
        )
    )
    table = gap_table(results)
    assert set(table["order"]) == {"as given"} and set(table["cache.tokens"]) == {160}
    assert table["template"].isna().all()
    table = table.set_index(["workload", "scheduler"])
    assert table.loc[("judge", "fcfs"), "capacity"] == pytest.approx(0.1)
    assert table.loc[("judge", "fcfs"), "scheduling"] == pytest.approx(0.1)
    assert table.loc[("file", "lpm"), "scheduling"] == pytest.approx(0.1)
    figure = gap_figure(gap_table(results))
    names = [text.get_text() for text in figure.axes[0].get_yticklabels()]
    assert "judge, as given, fcfs" in names
    keys = [text.get_text() for text in figure.legends[0].get_texts()]
    assert keys == ["measured", "scheduling gap", "capacity gap"]
    lines = gap_lines(results, compare(results)).splitlines()
    assert [line.split()[-4:] for line in lines[2:5]] == [
        ["fcfs", "-", "0.600", "0.000"],
        ["lpm", "-", "0.600", "0.100"],
        ["fcfs", "-", "0.100", "0.100"],
    ]


def test_rows_without_a_partner_have_no_line(make_sweep: MakeSweep) -> None:
    runs = [run_of("canonical", name, 0, 0.9, 0.8) for name in SCHEDULERS]
    alone = run_of("random_per_request", "fcfs", 0, 0.5, 0.4)
    results = make_sweep(*runs, alone)
    lines = gap_lines(results, compare(results)).splitlines()
    assert lines[2].split()[-4:] == ["fcfs", "0.050", "0.100", "0.000"]
    assert not any("random" in line for line in lines)


def test_without_depth_first_runs_there_are_no_gap_lines(make_sweep: MakeSweep) -> None:
    results = make_sweep(run_of("canonical", "fcfs", 0, 0.9, 0.8))
    assert gap_lines(results, compare(results)) == ""


def test_runs_older_than_the_best_bound_are_refused(make_sweep: MakeSweep) -> None:
    runs = [run_of("canonical", name, 0, 0.9, 0.8) for name in SCHEDULERS]
    for _, _, summary in runs:
        del summary["best_order_bound"]
    with pytest.raises(ValueError, match=r"run \d: no best_order_bound.*run it again"):
        gap_table(make_sweep(*runs))


def test_runs_without_bounds_are_refused(make_sweep: MakeSweep) -> None:
    runs = [run_of("canonical", name, 0, math.nan, 0.8) for name in SCHEDULERS]
    with pytest.raises(ValueError, match=r"record\.bounds=true"):
        gap_table(make_sweep(*runs))


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
    assert max(ends) == pytest.approx(0.955)


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


def test_depth_first_runs_alone_have_no_gaps(make_sweep: MakeSweep) -> None:
    with pytest.raises(ValueError, match="every run has scheduler=dfs"):
        gap_table(make_sweep(run_of("canonical", "dfs", 0, 0.9, 0.8)))


def test_runs_without_an_order_are_refused(make_sweep: MakeSweep) -> None:
    options = {"scheduler": "fcfs", "cache": {"tokens": 1}}
    with pytest.raises(ValueError, match=r"workload\.order or workload\.scrambled"):
        order_grid_table(make_sweep((options, 0, {"sharing_bound": 1.0, "hit_rate": 1.0})))
