"""Tables of program sweeps from summaries written by hand, and that figures are drawn of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from testbed.reports.programs import (
    ablation_table,
    effect_table,
    hit_rate_table,
    plot_ablation,
    plot_effect,
    plot_hit_rates,
)

from .conftest import MakeSweep

EFFECTS = {"output_tokens_per_s": 100.0, "ttft_mean_s": 1.0, "e2e_mean_s": 2.0}


def run(workload: str, seed: int = 0, arm: str = "full", **summary: Any) -> tuple[Any, ...]:
    return {"workload.name": workload, "ablation": arm}, seed, summary


def test_hit_rates_stand_beside_both_optima(make_sweep: MakeSweep, tmp_path: Path) -> None:
    results = make_sweep(
        run("unknown", hit_rate=0.1, sharing_bound=0.4),
        run("judge", 0, hit_rate=0.6, sharing_bound=0.8),
        run("judge", 1, hit_rate=0.7, sharing_bound=0.7),
        run("chat", hit_rate=0.5, sharing_bound=0.5),
    )
    table = hit_rate_table(results, {"chat": (0.5, 0.6), "judge": (0.72, 0.73)})
    assert table["workload.name"].tolist() == ["chat", "judge", "unknown"]
    assert table["hit_rate"].tolist() == pytest.approx([0.5, 0.65, 0.1])
    # Per run, then averaged: (0.75 + 1) / 2.
    assert table["of_optimum"].tolist() == pytest.approx([1.0, 0.875, 0.25])
    assert table["published_optimum"].tolist()[:2] == [0.6, 0.73]
    assert table["published"].isna().tolist() == [False, False, True]
    written = plot_hit_rates(table, tmp_path / "hits")
    assert [path.name for path in written] == ["hits.pdf", "hits.png", "hits.csv"]


def test_hit_rates_need_an_optimum(make_sweep: MakeSweep) -> None:
    results = make_sweep(run("chat", hit_rate=0.5, sharing_bound=None))
    with pytest.raises(ValueError, match="sharing_bound: no such option"):
        hit_rate_table(results, {})


def test_speed_is_relative_to_the_full_system_by_seed(
    make_sweep: MakeSweep, tmp_path: Path
) -> None:
    results = make_sweep(
        run("chat", 0, "full", makespan_s=10.0, hit_rate=0.5),
        run("chat", 1, "full", makespan_s=30.0, hit_rate=0.5),
        run("chat", 0, "fcfs", makespan_s=20.0, hit_rate=0.2),
        run("chat", 1, "fcfs", makespan_s=40.0, hit_rate=0.4),
        run("agents", 0, "full", makespan_s=5.0, hit_rate=0.9),
    )
    table = ablation_table(results, ("fcfs", "full"))
    # (10 / 20 + 30 / 40) / 2.
    assert table[["workload.name", "ablation", "speed"]].to_numpy().tolist() == [
        ["agents", "full", 1.0],
        ["chat", "fcfs", 0.625],
        ["chat", "full", 1.0],
    ]
    assert table["hit_rate"].tolist() == pytest.approx([0.9, 0.3, 0.5])
    assert [path.suffix for path in plot_ablation(table, tmp_path / "arms")] == [
        ".pdf",
        ".png",
        ".csv",
    ]


def test_a_missing_full_run_is_named(make_sweep: MakeSweep) -> None:
    results = make_sweep(run("chat", 3, "fcfs", makespan_s=20.0, hit_rate=0.2))
    with pytest.raises(ValueError, match=r"workload\.name=chat, seed=3: no run with ablation=full"):
        ablation_table(results, ("fcfs", "full"))


def test_effects_rise_with_the_hit_rate(make_sweep: MakeSweep, tmp_path: Path) -> None:
    results = make_sweep(
        ({"workload.unshared": 0.0}, 0, {"hit_rate": 0.9, **EFFECTS}),
        ({"workload.unshared": 0.5}, 0, {"hit_rate": 0.4, **EFFECTS}),
    )
    table = effect_table(results, "workload.unshared")
    assert table["workload.unshared"].tolist() == [0.5, 0.0]
    assert table["hit_rate"].tolist() == [0.4, 0.9]
    assert (tmp_path / "effect.csv") in plot_effect(table, tmp_path / "effect")
