"""Figures over a swept option: cache sizes, request rates, replicas, workloads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from testbed.reports.cache_sizes import cache_size_figure, cache_size_table, plot_cache_sizes
from testbed.reports.cluster import cluster_figure, cluster_table
from testbed.reports.load import Slo, load_figure, load_table
from testbed.reports.workloads import workload_figure, workload_table
from tests.metrics.conftest import build_record

LATENCIES = {"ttft_p50_s": 0.1, "ttft_p99_s": 0.5, "tpot_p99_s": 0.02, "requests_per_s": 2.0}


def served(request: int, arrival: float, first: float, finish: float, tokens: int) -> Any:
    return {
        "request": request,
        "arrival_s": arrival,
        "admitted_s": arrival,
        "admitted_step": 1,
        "first_token_s": first,
        "finish_s": finish,
        "output_tokens": tokens,
        "prompt_tokens": 10,
    }


def numbers(hit: float, throughput: float = 100.0) -> dict[str, float]:
    bounds = {"clairvoyant_bound": 0.7, "sharing_bound": 0.8, "evicted_tokens": 5}
    return {"hit_rate": hit, "output_tokens_per_s": throughput, **bounds, **LATENCIES}


def test_cache_sizes_show_a_line_a_policy_below_the_bounds(make_sweep: Any, tmp_path: Path) -> None:
    sweep = make_sweep(
        *(
            ({"eviction": name, "cache": {"tokens": size}}, 0, numbers(hit))
            for name, size, hit in (
                ("lru", 1000, 0.2),
                ("lru", 4000, 0.4),
                ("lfu", 1000, 0.3),
                ("lfu", 4000, 0.5),
            )
        )
    )
    figure = cache_size_figure(cache_size_table(sweep))
    (axes,) = figure.axes
    lines = {line.get_label(): list(line.get_ydata()) for line in axes.lines}
    assert lines["lru"] == [0.2, 0.4] and lines["lfu"] == [0.3, 0.5]
    assert lines["clairvoyant bound"] == [0.7, 0.7]
    assert [text.get_text() for text in axes.get_xticklabels()] == ["1k", "4k"]
    assert figure.get_size_inches()[0] == pytest.approx(3.33)
    written = plot_cache_sizes(sweep, tmp_path / "sizes")
    before = [path.read_bytes() for path in written]
    assert [path.read_bytes() for path in plot_cache_sizes(sweep, tmp_path / "sizes")] == before


def test_goodput_counts_what_met_both_limits(make_sweep: Any) -> None:
    # Over 4 s: one in time, one whose first token is late, one whose later tokens are slow.
    record = build_record(
        [
            served(0, 0.0, 0.5, 1.0, 6),
            served(1, 0.0, 2.0, 2.5, 6),
            served(2, 0.0, 0.5, 4.0, 6),
        ],
        [],
    )
    options = {"scheduler": "lpm", "arrivals": {"rate": 3.0}}
    table = load_table(make_sweep((options, 0, numbers(0.5), record)), Slo(1.0, 0.2))
    assert table["goodput_per_s"].tolist() == [pytest.approx(0.25)]
    panels = load_figure(table, Slo(1.0, 0.2)).axes
    assert "TTFT ≤ 1 s, TPOT ≤ 200 ms" in panels[2].get_ylabel()
    assert [axes.lines[0].get_ydata().tolist() for axes in panels[:2]] == [[0.1], [0.5]]


def test_imbalance_is_the_busiest_over_the_mean(make_sweep: Any) -> None:
    steps = [
        {"replica": 0, "step": 1, "start_s": 0.0, "end_s": 3.0},
        {"replica": 1, "step": 1, "start_s": 0.0, "end_s": 1.0},
    ]
    record = build_record([served(0, 0.0, 1.0, 3.0, 2)], steps)
    record.counters["replicas"] = 2
    sweep = make_sweep(({"routing": "random", "replicas": 2}, 0, numbers(0.5), record))
    table = cluster_table(sweep)
    assert table["load_imbalance"].tolist() == [1.5]
    figure = cluster_figure(table)
    assert [axes.get_xlabel() for axes in figure.axes] == ["Replicas"] * 3


def test_throughput_is_paired_with_the_baseline_by_workload_and_seed(make_sweep: Any) -> None:
    runs = [
        ({"workload": {"name": name}, "scheduler": policy}, seed, numbers(hit, speed))
        for name, policy, seed, hit, speed in (
            ("chat", "fcfs", 0, 0.1, 10.0),
            ("chat", "fcfs", 1, 0.1, 20.0),
            ("chat", "lpm", 0, 0.4, 20.0),
            ("chat", "lpm", 1, 0.4, 40.0),
            ("rag", "fcfs", 0, 0.3, 5.0),
            ("rag", "lpm", 0, 0.6, 15.0),
        )
    ]
    table = workload_table(make_sweep(*runs))
    relative = table.set_index(["workload.name", "scheduler"])["relative_throughput"]
    assert relative.to_dict() == {
        ("chat", "fcfs"): 1.0,
        ("chat", "lpm"): 2.0,
        ("rag", "fcfs"): 1.0,
        ("rag", "lpm"): 3.0,
    }
    hit, throughput = workload_figure(table).axes
    bars = [
        bar.get_height()
        for container in hit.containers
        if hasattr(container, "patches")
        for bar in container
    ]
    assert bars == [0.1, 0.3, 0.4, 0.6]
    assert throughput.get_ylabel().endswith("over fcfs")


def test_a_workload_that_the_baseline_did_not_serve_is_named(make_sweep: Any) -> None:
    sweep = make_sweep(
        ({"workload": {"name": "chat"}, "scheduler": "fcfs"}, 0, numbers(0.1)),
        ({"workload": {"name": "rag"}, "scheduler": "lpm"}, 0, numbers(0.1)),
    )
    with pytest.raises(ValueError, match="workload 'rag', seed 0: the baseline 'fcfs'"):
        workload_table(sweep)
