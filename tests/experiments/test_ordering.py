"""The experiments on prompt order, and the forecast beside what they simulate."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from experiments import forecast
from testbed.cli import main
from testbed.metrics.loading import load
from testbed.reports.ordering import gap_table
from tests.experiments.conftest import Command

CASES = json.loads((Path(__file__).parents[1] / "cases" / "lesson.json").read_text())
SMALL_TEMPLATE = (
    "workload.system.tokens=40",
    "workload.tools.tokens=4",
    "workload.context.tokens=30",
    "workload.output_tokens=4",
)


def test_the_lesson_at_the_size_of_one_prompt(command: Command, tmp_path: Path) -> None:
    """180 blocks of 16 tokens: every rate of the exact cases."""
    arguments = ["-m", "experiment=lesson", "cache.tokens=2880"]
    assert command(*arguments, small=False).status == 0
    summary = load(tmp_path / "out").summary
    assert len(summary) == 4
    expected = {case["scramble"]: case for case in CASES if case["budget_blocks"] == 180}
    for run in summary.to_dict("records"):
        case = expected[run["workload.scrambled"]]
        assert round(run["hit_rate"], 4) == case[run["scheduler"]]
        assert round(run["sharing_bound"], 4) == case["upper_bound"]


def test_with_room_for_everything_every_order_of_service_reaches_the_bound(
    command: Command, tmp_path: Path
) -> None:
    arguments = ["-m", "experiment=order_grid", "cache.tokens=1000000", "seed=0"]
    assert command(*arguments, *SMALL_TEMPLATE).status == 0
    summary = load(tmp_path / "out").summary
    assert len(summary) == 4
    assert summary["hit_rate"].tolist() == summary["sharing_bound"].tolist()


@pytest.mark.parametrize(
    "orders",
    [
        ["canonical", "[timestamp,system,tools,context,question]"],
        pytest.param(None, marks=pytest.mark.slow, id="all that the experiment lists"),
    ],
)
def test_gaps_of_the_templates(command: Command, tmp_path: Path, orders: list[str] | None) -> None:
    arguments = ["-m", "experiment=order_gaps", "seed=0", "cache.tokens=400", *SMALL_TEMPLATE]
    if orders is not None:
        arguments.append(f"workload.order={','.join(orders)}")
    assert command(*arguments).status == 0
    table = gap_table(load(tmp_path / "out"))
    assert len(table) == (6 if orders is None else 2)
    gaps = table[["template", "capacity", "scheduling", "measured"]].sum(axis=1)
    assert gaps.tolist() == pytest.approx(table["best_bound"].tolist())
    assert table["best_bound"].nunique() == 1
    assert (table["template"] >= 0).all()
    front = table[table["order"].str.startswith("timestamp")]
    assert front["bound"].tolist() == [0.0]


def test_two_gaps_of_a_workload_without_segments(
    command: Command, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = ["-m", "workload=judge", "scheduler=fcfs,dfs", "cache.tokens=20000"]
    assert command(*arguments, "workload.num_programs=6", small=False).status == 0
    (row,) = gap_table(load(tmp_path / "out")).to_dict("records")
    assert (row["workload"], row["order"]) == ("judge", "as given")
    assert math.isnan(row["template"])
    assert row["capacity"] + row["scheduling"] == pytest.approx(row["bound"] - row["measured"])
    capfd.readouterr()
    assert main(["compare", str(tmp_path / "out")]) == 0
    assert "gaps of the hit rate  template  capacity  scheduling" in capfd.readouterr().out


def test_the_forecast_stands_beside_what_was_simulated(
    command: Command, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = [
        "-m",
        "experiment=forecast",
        "workload.order=canonical",
        "workload.output_tokens=16",
        "workload.num_requests=60",
    ]
    assert command(*arguments, small=False).status == 0
    table = forecast.forecast_table(load(tmp_path / "out"))
    assert table["quantity"].tolist() == ["prefill saving", "throughput gain"]
    assert table["error"].abs().max() < 0.2
    assert forecast.main([str(tmp_path / "out")]) == 0
    assert "throughput gain" in capfd.readouterr().out


def test_a_forecast_needs_runs_without_a_cache(
    command: Command, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert command("experiment=forecast", "arrivals.rate=1", "cache.kind=radix").status == 0
    assert forecast.main([str(tmp_path / "out")]) == 2
    assert "cache.kind=none" in capfd.readouterr().err
