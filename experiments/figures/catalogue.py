"""Every figure: what it asks, the experiments that it is drawn from, and how it is drawn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from experiments.figures.engine_runs import plot_engine_runs, record_engine_runs
from experiments.figures.snapshots import tree_snapshots
from experiments.sglang import REPORTS
from testbed.metrics.loading import Results, load
from testbed.metrics.results import ResultsError
from testbed.metrics.stored import read_record
from testbed.reports.cache_sizes import plot_cache_sizes
from testbed.reports.cluster import plot_cluster
from testbed.reports.comparison import compare
from testbed.reports.fairness import plot_fairness
from testbed.reports.frontier import plot_frontier
from testbed.reports.load import plot_load
from testbed.reports.ordering import plot_gaps, plot_order_grid
from testbed.reports.style import publish
from testbed.reports.timeline import plot_timeline
from testbed.reports.tree import icicle_figure, icicle_table
from testbed.reports.workloads import plot_workloads

FRONTIER = ("scheduler", "scheduler.quantum", "scheduler.window")
MOMENTS = (0.1, 0.5, 1.0)
"""Parts of the time in which requests arrive."""


@dataclass(frozen=True)
class Figure:
    """draw: from a folder of runs to STEM.pdf, STEM.png and STEM.csv; returns what it wrote.

    experiments: names in experiments/conf/experiment; all their runs go to one folder. record:
    makes other runs there, if they are missing.
    """

    name: str
    question: str
    experiments: tuple[str, ...]
    draw: Callable[[Path, Path], list[Path]]
    record: Callable[[Path], None] | None = None


def _from_results(
    plot: Callable[[Results, Path], list[Path]],
) -> Callable[[Path, Path], list[Path]]:
    return lambda folder, stem: plot(load(folder), stem)


def _frontier(results: Results, stem: Path) -> list[Path]:
    present = [option for option in FRONTIER if option in results.config]
    return plot_frontier(compare(results, present), stem)


def _timeline(results: Results, stem: Path) -> list[Path]:
    if len(results.folders) != 1:
        raise ResultsError(f"{len(results.folders)} runs: one run is needed for its timeline")
    (folder,) = results.folders.values()
    return plot_timeline(read_record(folder), stem)


def _tree(results: Results, stem: Path) -> list[Path]:
    taken = {
        f"{shot.time_s:.1f} s, step {shot.step:,}": shot
        for shot in tree_snapshots(results, MOMENTS)
    }
    table = icicle_table({title: shot.nodes for title, shot in taken.items()})
    steps = {title: shot.step for title, shot in taken.items()}
    return publish(icicle_figure(table, steps), table, stem)


def _sglang(name: str) -> Callable[[Results, Path], list[Path]]:
    report = REPORTS[name]
    return lambda results, stem: report.plot(report.table(results), stem)


FIGURES = (
    Figure(
        "workloads",
        "what does each scheduler reuse, workload by workload, and what was possible?",
        ("figure_workloads",),
        _from_results(plot_workloads),
    ),
    Figure(
        "cache_sizes",
        "how much cache does each eviction policy need?",
        ("figure_cache_sizes",),
        _from_results(plot_cache_sizes),
    ),
    Figure(
        "order_grid",
        "what do a prompt's order and the order of service cost, at each cache size?",
        ("order_grid",),
        _from_results(plot_order_grid),
    ),
    Figure(
        "order_gaps",
        "is hit rate lost to the template, to capacity or to scheduling?",
        ("order_gaps",),
        _from_results(plot_gaps),
    ),
    Figure(
        "load",
        "how do latency and goodput follow the rate of requests?",
        ("figure_load",),
        _from_results(plot_load),
    ),
    Figure(
        "fairness",
        "what is each client given over time, and how far apart are they?",
        ("figure_fairness",),
        _from_results(plot_fairness),
    ),
    Figure(
        "frontier",
        "what does fairness cost in hit rate and throughput?",
        ("frontier", "frontier_dlpm", "frontier_window"),
        _from_results(_frontier),
    ),
    Figure(
        "fidelity",
        "are simulated latencies and hit rates those of the engine?",
        (),
        plot_engine_runs,
        record_engine_runs,
    ),
    Figure(
        "cluster",
        "which router keeps the hit rate as replicas are added?",
        ("figure_cluster",),
        _from_results(plot_cluster),
    ),
    Figure(
        "timeline",
        "what happens in each step: prefill, decode, hits, evictions?",
        ("figure_timeline",),
        _from_results(_timeline),
    ),
    Figure(
        "tree",
        "what does the radix tree hold, and what of it is used?",
        ("figure_tree",),
        _from_results(_tree),
    ),
    Figure(
        "sglang_hit_rates",
        "SGLang's paper: what part of the optimum is reached, workload by workload?",
        ("sglang_hit_rates",),
        _from_results(_sglang("hit_rates")),
    ),
    Figure(
        "sglang_ablation",
        "SGLang's paper: what is each of its parts worth?",
        ("sglang_ablation",),
        _from_results(_sglang("ablation")),
    ),
    Figure(
        "sglang_effect",
        "SGLang's paper: what is a hit worth in throughput and latency?",
        ("sglang_hit_rate_effect",),
        _from_results(_sglang("effect")),
    ),
)
