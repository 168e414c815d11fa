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
    assert pairs.missing == ("fcfs seed 0",) and pairs.new == ("vtc seed 0",)


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


RAG = {"_target_": "testbed.workloads.RagWorkload", "num_requests": 4}
Run = tuple[dict[str, Any], int, float]


def seeded(seed: int, number: float, **seeds: Any) -> Run:
    """A run whose groups draw from seeds of their own."""
    workload = {**RAG, "seed": seeds.get("workload", seed)}
    arrivals = {"rate": 2.0, "seed": seeds.get("arrivals", seed)}
    scheduler = {"name": "random", "seed": seeds.get("scheduler", 0)}
    return {"workload": workload, "arrivals": arrivals, "scheduler": scheduler}, seed, number


@pytest.mark.parametrize("group", ["workload", "arrivals"])
def test_another_seed_of_the_workload_is_another_workload(tmp_path: Path, group: str) -> None:
    before = make(tmp_path / "a", *(seeded(s, s / 10, **{group: 5}) for s in range(3)))
    after = make(tmp_path / "b", *(seeded(s, s / 9, **{group: 6}) for s in range(3)))
    with pytest.raises(ValueError, match=f"{group}.seed is 5 in run 0 before and 6 in run 0 after"):
        pair_runs(before, after, by=["scheduler.name"])


def test_a_seed_that_draws_nothing_anew_makes_no_sample(tmp_path: Path) -> None:
    fixed = {"workload": 5, "arrivals": 5}
    before = make(tmp_path / "a", *(seeded(s, 0.1, **fixed) for s in range(3)))
    after = make(tmp_path / "b", *(seeded(s, 0.2, **fixed) for s in range(3)))
    pairs = pair_runs(before, after, by=["scheduler.name"])
    assert list(pairs.rows["random"][0].index) == [0]
    assert pairs.repeats == {"random": (1, 2)} and pairs.one_workload == ()


def test_policies_may_draw_where_the_workload_does_not(tmp_path: Path) -> None:
    fixed = {"workload": 5, "arrivals": 5}
    before = make(tmp_path / "a", *(seeded(s, 0.1 * s, scheduler=s, **fixed) for s in range(3)))
    after = make(tmp_path / "b", *(seeded(s, 0.2, scheduler=s, **fixed) for s in range(3)))
    pairs = pair_runs(before, after, by=["scheduler.name"])
    assert list(pairs.rows["random"][0].index) == [0, 1, 2]
    assert pairs.repeats == {} and pairs.one_workload == ("random",)


def test_runs_whose_every_number_is_the_same_are_one_sample(tmp_path: Path) -> None:
    # The seed of a trace may number its tokens and change nothing else.
    before = make(tmp_path / "a", *(seeded(s, 0.1) for s in range(3)))
    after = make(tmp_path / "b", *(seeded(s, x) for s, x in enumerate([0.2, 0.2, 0.3])))
    pairs = pair_runs(before, after, by=["scheduler.name"])
    assert pairs.repeats == {"random": (1,)}


def test_measurements_are_samples_whatever_their_seeds(tmp_path: Path) -> None:
    sides = []
    for name in ("a", "b"):
        for seed in range(2):
            write_run(
                tmp_path / name / str(seed),
                config={"workload": RAG, "seed": seed},
                record=RunRecord(
                    columns_of([], REQUEST_COLUMNS), columns_of([], STEP_COLUMNS), None, {}
                ),
                summary={"hit_rate": 0.1},
                seed=seed,
                wall_seconds=0.0,
                machine={"device": "cpu"},
            )
        sides.append(load(tmp_path / name))
    pairs = pair_runs(*sides)
    assert list(pairs.rows[""][0].index) == [0, 1]
    assert pairs.repeats == {} and pairs.one_workload == ("",)


def test_nothing_to_pair_and_too_much_to_pair_are_errors(tmp_path: Path) -> None:
    before = make(tmp_path / "a", ({"k": 1}, 0, 0.1), ({"k": 2}, 0, 0.1))
    after = make(tmp_path / "b", ({"k": 3}, 0, 0.2))
    message = "nothing to pair: 1 seed 0, 2 seed 0 before, 3 seed 0 after; runs of the same k and"
    with pytest.raises(ValueError, match=message):
        pair_runs(before, after)
    with pytest.raises(ValueError, match="runs 0 and 1 are both 'rag' with seed 0"):
        pair_runs(before, after, by=["workload"])
    with pytest.raises(ValueError, match="by='wrkload': one of the options is needed: workload, k"):
        pair_runs(before, after, by=["wrkload"])
