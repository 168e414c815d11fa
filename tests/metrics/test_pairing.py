"""Which runs are paired, and what keeps them from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from testbed.core.records import REQUEST_COLUMNS, STEP_COLUMNS, RunRecord, columns_of
from testbed.metrics.loading import Results, load
from testbed.metrics.pairing import pair_runs, workload_identity
from testbed.metrics.results import write_run


def make(folder: Path, *runs: tuple[dict[str, Any], int, float], **config: Any) -> Results:
    """One run for each (overrides, seed, hit rate)."""
    record = RunRecord(columns_of([], REQUEST_COLUMNS), columns_of([], STEP_COLUMNS), None, {})
    for number, (options, seed, hit_rate) in enumerate(runs):
        write_run(
            folder / str(number),
            config={"workload": "rag", **config, **options, "seed": seed},
            record=record,
            summary={"hit_rate": hit_rate},
            seed=seed,
            wall_seconds=0.0,
            overrides=options,
        )
    return load(folder)


def test_runs_are_paired_by_what_varies_and_by_seed(tmp_path: Path) -> None:
    before = make(
        tmp_path / "a",
        ({"scheduler": "lpm", "eviction": "lru"}, 1, 0.1),
        ({"scheduler": "lpm", "eviction": "lru"}, 0, 0.2),
        ({"scheduler": "fcfs", "eviction": "lru"}, 0, 0.3),
    )
    after = make(
        tmp_path / "b",
        ({"scheduler": "lpm", "eviction": "lfu"}, 0, 0.4),
        ({"scheduler": "lpm", "eviction": "lfu"}, 1, 0.5),
        ({"scheduler": "vtc", "eviction": "lfu"}, 0, 0.6),
    )
    pairs = pair_runs(before, after)
    assert pairs.by == ("scheduler",)
    assert list(pairs.rows) == ["lpm"]
    first, second = pairs.rows["lpm"]
    assert first["hit_rate"].to_dict() == {0: 0.2, 1: 0.1}
    assert second["hit_rate"].to_dict() == {0: 0.4, 1: 0.5}
    assert pairs.changed == {"eviction": ("lru", "lfu")}
    assert pairs.alone == ("fcfs seed 0 (before)", "vtc seed 0 (after)")


def test_two_settings_that_each_side_has_once_are_the_change(tmp_path: Path) -> None:
    before = make(tmp_path / "a", ({"scheduler": "fcfs"}, 0, 0.1))
    after = make(tmp_path / "b", ({"scheduler": "lpm"}, 0, 0.2))
    pairs = pair_runs(before, after)
    assert pairs.by == () and list(pairs.rows) == [""]
    assert pairs.changed == {"scheduler": ("fcfs", "lpm")}


def test_an_option_of_one_side_alone_is_a_change(tmp_path: Path) -> None:
    before = make(tmp_path / "a", ({}, 0, 0.1))
    after = make(tmp_path / "b", ({"cache.tokens": 100}, 0, 0.2))
    assert pair_runs(before, after).changed == {"cache.tokens": ("-", "100")}


def test_seeds_do_not_make_another_workload_but_options_and_data_do() -> None:
    config = {"workload": {"rate": 2, "seed": 0}, "inputs": {"workload": "abc", "scheduler": "x"}}
    again = {"workload": {"seed": 5, "rate": 2}, "inputs": {"scheduler": "y", "workload": "abc"}}
    assert workload_identity(config) == workload_identity(again)
    assert workload_identity(config) != workload_identity({**config, "inputs": {"workload": "d"}})
    faster = {**config, "workload": {"rate": 3, "seed": 0}}
    assert workload_identity(config) != workload_identity(faster)


def test_runs_of_different_workloads_are_refused(tmp_path: Path) -> None:
    before = make(tmp_path / "a", ({}, 0, 0.1), workload={"rate": 2, "seed": 0})
    after = make(tmp_path / "b", ({}, 0, 0.2), workload={"rate": 3, "seed": 0})
    with pytest.raises(ValueError, match=r"workload.rate is 2 in run 0 before and 3 in run 0 afte"):
        pair_runs(before, after)


def test_nothing_to_pair_and_too_much_to_pair_are_errors(tmp_path: Path) -> None:
    before = make(tmp_path / "a", ({"k": 1}, 0, 0.1), ({"k": 2}, 0, 0.1))
    after = make(tmp_path / "b", ({"k": 3}, 0, 0.2))
    message = "nothing to pair: 1 seed 0, 2 seed 0 before, 3 seed 0 after; runs of the same k and"
    with pytest.raises(ValueError, match=message):
        pair_runs(before, after)
    with pytest.raises(ValueError, match="runs 0 and 1 are both 'rag' with seed 0"):
        pair_runs(before, after, by=["workload"])
    with pytest.raises(ValueError, match="by='colour': one of the options is needed: run, seed"):
        pair_runs(before, after, by=["colour"])
