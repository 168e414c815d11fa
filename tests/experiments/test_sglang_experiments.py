"""The experiments of SGLang's paper, in small, and the command that reports them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from omegaconf import OmegaConf

from experiments import sglang
from experiments.config import build_simulation
from experiments.run import CONF, register_options
from experiments.simulation import Run, Simulation
from testbed.metrics.bounds import run_bounds
from testbed.metrics.summary import summarize

from .conftest import Command


@pytest.fixture
def composed(data: Path) -> Iterator[None]:
    register_options()
    with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        yield


def built(*overrides: str) -> Simulation:
    config = compose("config", list(overrides))
    options: Any = OmegaConf.to_container(config, resolve=True, enum_to_str=True)
    return build_simulation(options, partial(instantiate, _convert_="all"))


def hit_rate(run: Run) -> float:
    return summarize(run.record)["hit_rate"]


@pytest.mark.usefixtures("composed")
def test_what_fits_reaches_the_optimum() -> None:
    run = built("experiment=sglang_hit_rates", "workload=chat", "workload.num_programs=8").run()
    bounds = run_bounds(run.record, run.requests)
    assert hit_rate(run) == bounds.sharing.rate
    assert bounds.sharing.rate == pytest.approx(0.6, abs=0.02)


@pytest.mark.usefixtures("composed")
@pytest.mark.parametrize("arm", sglang.ARMS)
def test_each_arm_takes_away_what_it_says(arm: str) -> None:
    simulation = built("experiment=sglang_ablation", f"ablation={arm}", "workload=judge")
    workload: Any = simulation.workload
    options: dict[str, Any] = {
        "cache": simulation.cache.kind,
        "blocks": simulation.cache.page_size,
        "policy": type(simulation.policy()).__name__,
        "hints": workload.workload.hints,
    }
    full: dict[str, Any] = {"cache": "radix", "blocks": 1, "policy": "Lpm", "hints": True}
    changed: dict[str, dict[str, Any]] = {
        "no_cache": {"cache": "none"},
        "table_16": {"cache": "block_hash", "blocks": 16},
        "table_256": {"cache": "block_hash", "blocks": 256},
        "fcfs": {"policy": "Fcfs"},
        "random": {"policy": "RandomOrder"},
        "no_hint": {"hints": False},
        "full": {},
    }
    assert options == full | changed[arm]


@pytest.mark.usefixtures("composed")
def test_fewer_hits_cost_throughput_and_first_tokens() -> None:
    summaries = [
        summarize(
            built(
                "experiment=sglang_hit_rate_effect",
                "workload.num_programs=8",
                f"workload.unshared={unshared}",
            )
            .run()
            .record
        )
        for unshared in (1.0, 0.5, 0.0)
    ]
    assert summaries[0]["hit_rate"] == 0
    for metric, sign in (("hit_rate", 1), ("output_tokens_per_s", 1), ("ttft_mean_s", -1)):
        assert (np.diff([sign * summary[metric] for summary in summaries]) > 0).all()


def test_the_command_prints_and_draws(
    command: Command, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    few = ["experiment=sglang_hit_rates", "workload=chat,json", "workload.num_programs=1"]
    assert command("-m", *few, "seed=0", small=False).status == 0
    assert sglang.main(["hit_rates", str(tmp_path / "out")]) == 0
    printed = capfd.readouterr().out
    assert "mean part of the optimum: 1.000" in printed
    assert (tmp_path / "out" / "hit_rates.png").is_file()


def test_a_folder_without_runs_is_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert sglang.main(["ablation", str(tmp_path / "nothing")]) == 2
    said = capfd.readouterr().err
    assert said.startswith("error: ")
    assert said.count("\n") == 1
