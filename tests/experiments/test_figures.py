"""The command that runs what a figure needs and draws it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from omegaconf import OmegaConf

from experiments.benchmarks.fidelity import PairedRuns
from experiments.config import build_simulation
from experiments.figures import engine_runs
from experiments.figures.__main__ import main
from experiments.figures.catalogue import FIGURES
from experiments.figures.snapshots import build, tree_snapshots
from experiments.figures.sweeps import EXPERIMENTS, ROOT, Sweep, full_variant, run_sweeps
from experiments.job import run_job
from experiments.run import CONF, register_options
from testbed import load
from testbed.core.records import RunRecord
from testbed.metrics.results import ResultsError
from tests.metrics.conftest import build_record

NAMES = [name for figure in FIGURES for name in figure.experiments]


@pytest.fixture
def composed(data: Path) -> Iterator[None]:
    register_options()
    with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        yield


def options_of(*overrides: str) -> Any:
    config = compose("config", list(overrides))
    options: Any = OmegaConf.to_container(config, resolve=True, enum_to_str=True)
    options.pop("output")
    return options


def write(folder: Path, *overrides: str) -> None:
    """One run of the options, as experiments.run would write it."""
    options = options_of(*overrides)
    simulation = build_simulation(options, partial(instantiate, _convert_="all"))
    chosen = dict(override.split("=") for override in overrides)
    run_job(simulation, folder, config=options, overrides=chosen)


def test_every_experiment_is_there_and_has_seeds() -> None:
    for name in NAMES:
        text = (EXPERIMENTS / f"{name}.yaml").read_text()
        assert "sweeper:" in text and "seed:" in text, name


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("figure_")])
def test_every_full_variant_is_a_run_of_the_same_options(name: str, composed: None) -> None:
    small, full = (options_of(f"experiment={one}") for one in (name, full_variant(name)))
    assert small.keys() == full.keys() and small["workload"].keys() == full["workload"].keys()
    build_simulation(full, partial(instantiate, _convert_="all")).check()


def test_a_stored_config_builds_what_it_was_made_of(composed: None) -> None:
    workload = options_of("experiment=figure_fairness")["workload"]
    assert build(workload) == instantiate(OmegaConf.create(workload), _convert_="all")


def test_the_tree_is_that_of_the_run_at_the_moment(composed: None, tmp_path: Path) -> None:
    small = ("workload.num_requests=40", "workload.documents=4", "cache.tokens=8000")
    write(tmp_path / "run", "experiment=figure_tree", *small)
    early, late = tree_snapshots(load(tmp_path / "run"), (0.2, 1.0))
    assert early.time_s < late.time_s and early.step < late.step
    requests = load(tmp_path / "run").requests
    done = requests[requests["finish_s"] <= early.time_s]
    nodes = early.nodes
    # Each request that left passes through one node below the root and is counted there.
    assert nodes.loc[nodes["parent"] == -1, "hits"].sum() >= len(done)
    assert nodes["tokens"].sum() <= 8000
    assert (nodes["start"] + nodes["tokens"]).max() <= requests["prompt_tokens"].max() + 69
    inner = nodes[nodes["parent"] >= 0]
    above = nodes.iloc[inner["parent"]]
    assert np.array_equal(inner["start"], above["start"].to_numpy() + above["tokens"].to_numpy())
    assert np.all(inner["hits"].to_numpy() <= above["hits"].to_numpy())


def test_a_run_that_other_code_made_is_refused(composed: None, tmp_path: Path) -> None:
    write(tmp_path / "run", "experiment=figure_tree", "workload.num_requests=8")
    config = tmp_path / "run" / "config.yaml"
    config.write_text(config.read_text().replace("question_tokens: 40", "question_tokens: 41"))
    with pytest.raises(ResultsError, match="was made by other code"):
        tree_snapshots(load(tmp_path / "run"), (0.5,))


def test_a_figure_is_drawn_from_the_runs_of_a_folder(
    composed: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rate in ("4.0", "8.0"):
        small = (f"arrivals.rate={rate}", "workload.num_requests=12")
        write(tmp_path / "runs" / rate, "experiment=figure_load", *small)
    written = ["load.csv", "load.pdf", "load.png"]
    assert main(["load", str(tmp_path / "runs"), "--output", str(tmp_path / "figures")]) == 0
    assert sorted(path.name for path in (tmp_path / "figures").iterdir()) == written
    assert "load.pdf" in capsys.readouterr().out
    # Of all figures, only those whose folders are there can be drawn; the others are named.
    (tmp_path / "all").mkdir()
    (tmp_path / "runs").rename(tmp_path / "all" / "load")
    assert main(["all", str(tmp_path / "all")]) == 2
    shown = capsys.readouterr()
    assert "error: cluster: " in shown.err and "load: " in shown.out


def test_runs_of_the_engine_are_drawn_with_what_was_predicted_of_each(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def run(slowness: float) -> RunRecord:
        """One request of two tokens."""
        first, last = slowness, 2 * slowness
        request = {"first_token_s": first, "finish_s": last, "decode_spans": "1-2"}
        steps = [{"step": 1, "end_s": first}, {"step": 2, "end_s": last, "decode_rows": 1}]
        return build_record([{**request, "prompt_tokens": 4, "output_tokens": 2}], steps)

    measured = {"past": [run(1.0), run(2.0)], "at": [run(4.0), run(4.0)]}
    predicted = {"past": [run(1.1), run(1.8)], "at": [run(3.0), run(2.0)]}
    served = SimpleNamespace(hardware=None, model=SimpleNamespace(name="m"))
    monkeypatch.setattr(engine_runs, "load_engine", lambda: served)
    asked: list[Any] = []

    def paired_runs(*arguments: Any) -> PairedRuns:
        asked.append(arguments)
        return PairedRuns(measured, predicted, 5, {})

    monkeypatch.setattr(engine_runs, "paired_runs", paired_runs)
    for _ in range(2):
        engine_runs.record_engine_runs(tmp_path)
    assert len(asked) == 1
    written = engine_runs.plot_engine_runs(tmp_path, tmp_path / "fidelity")
    rows = [line.split(",") for line in written[2].read_text().splitlines()]
    errors = {row[0]: float(row[4]) for row in rows if row[1] == "makespan_s"}
    # +10 % and -10 %; -25 % and -50 %.
    assert list(errors) == ["past", "at"]
    assert errors["past"] == pytest.approx(0, abs=1e-9)
    assert errors["at"] == pytest.approx(-0.375)


def test_mistakes_are_named_on_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, words in (
        (["lod"], "lod: one of all, workloads, "),
        (["load", str(tmp_path), "--scale", "full"], "--scale: nothing is run"),
        (["load", str(tmp_path / "no")], "no such folder"),
        (["fidelity", str(tmp_path)], "no such folder"),
    ):
        assert main(arguments) == 2
        error = capsys.readouterr().err
        assert words in error and error.count("\n") == 1


def test_the_list_says_what_each_figure_asks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [figure.name for figure in FIGURES]


def test_a_sweep_that_fails_says_why_and_stops_no_other(tmp_path: Path) -> None:
    counts: list[int] = []
    sweeps = [Sweep(name, tmp_path) for name in ("none_such", "nor_this")]
    failures = run_sweeps(sweeps, 2, counts.append)
    assert counts == [1, 2] and failures.keys() == set(sweeps)
    assert failures[sweeps[0]].startswith("experiment=none_such: exit status 2\n")


@pytest.mark.slow
def test_a_figure_is_made_with_one_command_and_twice_the_same(tmp_path: Path) -> None:
    (tmp_path / "experiments").symlink_to(ROOT / "experiments")
    contents = []
    for _ in range(2):
        command = [sys.executable, "-m", "experiments.figures", "timeline"]
        subprocess.run(command, cwd=tmp_path, check=True, env={"PYTHONPATH": str(ROOT)})
        drawn = sorted((tmp_path / "results" / "figures" / "small").glob("timeline.*"))
        contents.append([path.read_bytes() for path in drawn])
    assert len(contents[0]) == 4 and contents[0] == contents[1]
