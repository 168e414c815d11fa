from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from copy import deepcopy
from importlib.metadata import EntryPoint
from pathlib import Path
from textwrap import dedent

import pytest
import yaml
from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins

from testbed import load
from testbed.policies import registry
from testbed.sim.fitted import FittedLatency, write_latency

from .conftest import Command

ROOT = Path(__file__).resolve().parents[2]
TABLES = ("requests.parquet", "steps.parquet", "summary.json", "config.yaml", "COMPLETE")


@pytest.fixture
def foreign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Policies of somebody else's, in a module that can be imported and is no distribution yet."""
    folder = tmp_path / "foreign"
    folder.mkdir()
    (folder / "foreign_policies.py").write_text(
        dedent("""
        from testbed.policies import EvictionPolicy, SchedulingPolicy

        class Newest(SchedulingPolicy):
            '''Last come, first served.'''

            def __init__(self, stride: int = 1) -> None:
                if stride < 1:
                    raise ValueError(f"stride={stride}: at least 1 is needed")

            def candidates(self, view):
                for sequence in sorted(view.waiting, key=lambda s: -s.index):
                    if not (yield sequence):
                        return

        class Repeating(SchedulingPolicy):
            def candidates(self, view):
                for sequence in list(view.waiting):
                    yield sequence
                    yield sequence

        class Defective(SchedulingPolicy):
            def candidates(self, view):
                raise KeyError("a defect")
                yield

        class Lru(EvictionPolicy):
            def priority(self, node, now):
                return node.last_access

        class Raising(Newest):
            def __init__(self, error: str = "KeyError") -> None:
                raise {"KeyError": KeyError, "SystemExit": SystemExit}[error](0)

        class Outer:
            class Inner(Newest):
                pass
        """)
    )
    monkeypatch.syspath_prepend(str(folder))
    # The module of the test before is of another file.
    sys.modules.pop("foreign_policies", None)
    # What one test makes an option must not be one in the next. Hydra's own options are there from
    # the first look at its plug-ins on, and must stay.
    Plugins.instance()
    store = ConfigStore.instance()
    monkeypatch.setattr(store, "repo", deepcopy(dict(store.repo)))
    return folder


def folders(output: Path) -> list[Path]:
    return sorted(marker.parent for marker in output.glob("*/COMPLETE"))


def test_a_run_writes_one_complete_folder(command: Command, tmp_path: Path) -> None:
    done = command("scheduler=lpm", "hardware=h200")
    assert done.status == 0
    (folder,) = folders(tmp_path / "out")
    assert str(folder) in done.out
    assert {path.name for path in folder.iterdir()} == {*TABLES, "manifest.json"}
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["overrides"]["scheduler"] == "lpm"
    assert manifest["overrides"]["hardware"] == "h200"
    assert manifest["overrides"]["workload.num_requests"] == 12
    assert manifest["counters"]["bytes_per_page"] == 16 * 131072
    config = yaml.safe_load((folder / "config.yaml").read_text())
    assert config["scheduler"]["_target_"] == "testbed.policies.scheduling.cache_aware.Lpm"
    assert len(load(folder).requests) == 12


def test_the_readmes_command_works_from_a_shell(data: Path, tmp_path: Path) -> None:
    arguments = "workload=mooncake scheduler=lpm eviction=lru hardware=h100 model=llama-3.1-8b"
    run = subprocess.run(
        [sys.executable, "-m", "experiments.run", *arguments.split(), f"output={tmp_path / 'out'}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (run.returncode, run.stderr) == (0, "")
    # Six prompts of 700 tokens, a second apart: they share their first 512, and every second one
    # repeats its predecessor (capped at 699, in pages of 16).
    (folder,) = folders(tmp_path / "out")
    assert load(folder).summary["cached_tokens"].tolist() == [3 * 688 + 2 * 512]


def test_equal_runs_are_equal_bytes_and_lie_where_their_overrides_say(
    command: Command, tmp_path: Path
) -> None:
    command("scheduler=lpm", "seed=3")
    (first,) = folders(tmp_path / "out")
    contents = {name: (first / name).read_bytes() for name in TABLES}
    (tmp_path / "out").rename(tmp_path / "kept")
    command("seed=3", "scheduler=lpm")
    (second,) = folders(tmp_path / "out")
    assert second.name == first.name
    assert {name: (second / name).read_bytes() for name in TABLES} == contents
    command("seed=4", "scheduler=lpm")
    assert len(folders(tmp_path / "out")) == 2


def test_a_sweep_resumes_where_it_was_stopped(command: Command, tmp_path: Path) -> None:
    sweep = ("-m", "scheduler=fcfs,lpm", "seed=0,1")
    assert command(*sweep).status == 0
    runs = folders(tmp_path / "out")
    assert len(runs) == 4
    before = {run: (run / "manifest.json").stat().st_mtime_ns for run in runs}
    (runs[0] / "COMPLETE").unlink()
    again = command(*sweep)
    assert again.status == 0
    assert "3 of 4 runs: complete, skipped\n" in again.err
    assert folders(tmp_path / "out") == runs
    rewritten = {run for run in runs if (run / "manifest.json").stat().st_mtime_ns != before[run]}
    assert rewritten == {runs[0]}


def test_a_folder_of_another_config_is_refused(command: Command, tmp_path: Path) -> None:
    command()
    (folder,) = folders(tmp_path / "out")
    (folder / "COMPLETE").write_text("0123456789abcdef\n")
    done = command()
    assert done.status == 2
    assert done.err.count("\n") == 1
    assert "another config" in done.err


def test_a_sweep_is_compared_by_what_differs(command: Command, tmp_path: Path) -> None:
    command("-m", "hardware=h100,h200", "cache.tokens=20000,40000")
    summary = load(tmp_path / "out").summary
    rows = set(zip(summary["hardware"], summary["cache.tokens"], strict=True))
    assert rows == {(card, size) for card in ("h100", "h200") for size in (20000, 40000)}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["scheduler=lmp"], "scheduler=lmp: one of dfs, dfs_weight, dlpm, fcfs, "),
        (["cache.tokenz=5"], "cache.tokenz: no such option; cache has page_size,"),
        (["+cache.sise=5"], "cache.sise: no such option; cache has page_size,"),
        (["sead=1"], "sead: no such option; an experiment has workload,"),
        (["scheduler=dlpm", "scheduler.quantm=5"], "scheduler has quantum, extend_weight"),
        (["cache.page_size=big"], "cache.page_size: Value 'big' of type 'str'"),
        (["cache.kind=tree"], "cache.kind: Invalid value 'tree', expected one of [radix,"),
        (["batching.chunk_size=null"], "field 'batching.chunk_size' is not Optional"),
        (["cache=5"], "cache: Invalid type assigned"),
        (["arrivals=poisson"], "arrivals.rate: a value is needed"),
        (["cache.page_size=0"], "cache.page_size=0: 1 to cache.tokens"),
        (["batching.max_running=0"], "max_running=0: at least 1 is needed"),
        (["workload.tenants=0"], "RagWorkload.tenants=0: a whole number of at least 1"),
        (["replicas=0"], "replicas=0: 1 to 10,000 are needed"),
        (["replicas=100000000000000000000"], "replicas=100000000000000000000: 1 to 10,000 are"),
        (["cache.tokens=99999999999999999"], "cache.tokens=99999999999999999: at most 2147483647"),
        (["latency=nowhere.json"], "latency='nowhere.json': no such file; `testbed calibrate`"),
        (
            ["latency=Makefile"],
            "latency='Makefile': not written by `testbed calibrate`",
        ),
        (["latency=tests"], "latency='tests': a file is needed"),
        (["seed=-1"], "seed=-1: a whole number of at least 0 is needed"),
        (
            ["eviction=belady", "arrivals=closed_loop", "arrivals.concurrency=2"],
            "eviction=Belady: an oracle has to know all requests ahead",
        ),
        (["hardware.engine=trt"], "engine='trt' on h100: one of vllm, sglang is needed"),
        (["model=llama-3.1-70b"], "llama-3.1-70b does not fit h100"),
        (["scheduler=dlpm", "scheduler.quantum=0"], "quantum=0"),
        (["scheduler._target_=nowhere.Policy"], "No module named 'nowhere'"),
        (["scheduler._target_=Policy"], "package.module.Class is needed"),
        (["scheduler._target_=foreign_policies.Newest", "scheduler.stride=0"], "Newest: stride=0"),
        (["scheduler=.."], "'..': package.module:Class is needed"),
        (["scheduler=foreign_policies."], "'foreign_policies.': package.module:Class is needed"),
        (["scheduler=:Newest"], "':Newest': package.module:Class is needed"),
        (["eviction=foreign_policies.Lru", "cache.kind=block_hash"], "only lru goes with"),
        (["scheduler._target_=foreign_policies.Newest", "scheduler.strid=1"], "has stride"),
        (["scheduler._target_=foreign_policies.Repeating"], "Repeating"),
        (["eviction._target_=foreign_policies.Newest"], "is no concrete EvictionPolicy"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing(
    command: Command, foreign: Path, tmp_path: Path, overrides: list[str], message: str
) -> None:
    done = command(*overrides)
    assert done.status == 2
    assert message in done.err
    assert done.err.startswith("error: ")
    assert done.err.count("\n") == 1
    output = tmp_path / "out"
    assert not output.exists() or list(output.iterdir()) == []


@pytest.mark.parametrize("make", [Path.touch, lambda path: path.symlink_to("nowhere")])
def test_something_else_in_a_folder_s_place_is_named(
    command: Command, tmp_path: Path, make: Callable[[Path], None]
) -> None:
    command()
    (folder,) = folders(tmp_path / "out")
    shutil.rmtree(folder)
    make(folder)
    done = command()
    reason = f"{folder}: a folder is needed, and something else is there"
    assert (done.status, done.err) == (2, f"error: {reason}\n")


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">/dev/full", "| :"])
def test_a_stream_that_nobody_reads_fails_no_run(tmp_path: Path, closed: str) -> None:
    line = f"{sys.executable} -m experiments.run workload.num_requests=5 output={tmp_path / 'out'}"
    run = subprocess.run(
        ["bash", "-o", "pipefail", "-c", f"{line} {closed}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert len(folders(tmp_path / "out")) == 1


def test_a_missing_trace_is_one_line(command: Command, data: Path) -> None:
    (data / "mooncake" / "conversation_trace.jsonl").unlink()
    done = command("workload=mooncake", small=False)
    assert done.status == 2
    assert done.err.count("\n") == 1
    assert "Set TESTBED_DATA" in done.err


def test_a_trace_needs_a_name(command: Command) -> None:
    done = command("workload=mooncake", "workload.path=null", small=False)
    assert (done.status, done.err.count("\n")) == (2, 1)
    assert "workload.path=None: the name of a file is needed" in done.err


def test_fitted_step_times_take_the_place_of_the_roofline(command: Command, tmp_path: Path) -> None:
    fitted = tmp_path / "latency.json"
    write_latency(fitted, FittedLatency({"step": 0.5}), {})
    options = (f"latency={fitted}", "workload.num_requests=1", "arrivals=all_at_once")
    assert command(*options, "batching.chunk_size=1000000", small=False).status == 0
    results = load(tmp_path / "out")
    # One step computes the prompt and the first token; each further token is a step of its own.
    steps = int(results.requests["output_tokens"].iloc[0])
    assert results.summary["makespan_s"].tolist() == [pytest.approx(0.5 * steps)]
    write_latency(fitted, FittedLatency({"step": 0.25}), {})
    again = command(*options, "batching.chunk_size=1000000", small=False)
    assert "another config" in again.err


def test_several_clients_see_the_gap_between_them(command: Command) -> None:
    alone = command("workload.tenants=1")
    assert "service gap" not in alone.out
    # Both ask for more than the card can do, from the first second on.
    many = command("experiment=fairness", "workload.duration=20", small=False)
    (gap,) = re.findall(r"service gap ([\d,]+) tokens", many.out)
    assert int(gap.replace(",", "")) > 0


def test_a_foreign_policy_takes_the_place_of_the_groups_choice(
    command: Command, foreign: Path, tmp_path: Path
) -> None:
    path = "foreign_policies.Newest"
    done = command("scheduler=dlpm", f"scheduler._target_={path}", "scheduler.stride=2")
    assert done.status == 0, done.err
    (config,) = load(tmp_path / "out").config[["scheduler._target_", "scheduler.stride"]].values
    assert config.tolist() == [path, 2]


def test_a_foreign_policy_sweeps_with_ours(command: Command, foreign: Path, tmp_path: Path) -> None:
    done = command("-m", "scheduler=fcfs,foreign_policies.Newest")
    assert done.status == 0, done.err
    schedulers = set(load(tmp_path / "out").summary["scheduler"])
    assert schedulers == {"fcfs", "foreign_policies.Newest"}


def test_a_foreign_policy_becomes_an_option_by_its_entry_point(
    command: Command, foreign: Path, tmp_path: Path
) -> None:
    described = foreign / "foreign_policies-1.0.dist-info"
    described.mkdir()
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: foreign\nVersion: 1.0\n")
    (described / "entry_points.txt").write_text(
        "[testbed.policies]\nnewest = foreign_policies:Newest\n"
    )
    done = command("-m", "scheduler=newest,lpm")
    assert done.status == 0, done.err
    assert set(load(tmp_path / "out").summary["scheduler"]) == {"newest", "lpm"}
    assert "stride=0" in command("scheduler=newest", "scheduler.stride=0").err


@pytest.mark.parametrize("error", ["KeyError", "SystemExit"])
def test_a_defect_while_a_policy_is_made_is_a_failure_with_its_traceback(
    command: Command, foreign: Path, error: str
) -> None:
    done = command("scheduler=foreign_policies.Raising", f"scheduler.error={error}")
    assert done.status == 1
    assert "in __init__" in done.err and f"{error}: 0" in done.err


def test_a_module_that_exits_is_a_mistake(command: Command, foreign: Path) -> None:
    (foreign / "exiting.py").write_text("raise SystemExit(0)\n")
    done = command("scheduler=exiting.Policy")
    assert (done.status, done.out) == (2, "")
    assert done.err == "error: exiting.Policy: SystemExit: 0 (exiting.py, line 1)\n"


def test_a_nested_class_s_run_is_of_another_config_once_its_file_changes(
    command: Command, foreign: Path, tmp_path: Path
) -> None:
    choice = "scheduler=foreign_policies:Outer.Inner"
    assert command(choice).status == 0
    assert "complete, skipped" in command(choice).err
    (folder,) = folders(tmp_path / "out")
    before = yaml.safe_load((folder / "config.yaml").read_text())
    assert before["scheduler"]["_target_"] == "foreign_policies.Outer.Inner"
    assert list(before["inputs"]) == ["scheduler"]
    with (foreign / "foreign_policies.py").open("a") as source:
        source.write("# edited\n")
    assert "another config" in command(choice).err


@pytest.mark.parametrize("installed", [True, False])
def test_a_broken_plug_in_is_an_error_only_where_it_is_chosen(
    command: Command, monkeypatch: pytest.MonkeyPatch, installed: bool
) -> None:
    name = f"absent_{installed}".lower()
    if installed:
        point = EntryPoint(name, f"{name}:Policy", registry.ENTRY_POINT_GROUP)
        monkeypatch.setattr(registry, "entry_points", lambda group: (point,))
        label = f"policy {name} of entry point {name}:Policy"
    else:
        monkeypatch.setenv(registry.MODULES_VARIABLE, name)
        label = f"TESTBED_POLICIES={name}"
    reason = f"{label}: No module named '{name}'"
    chosen = command(f"scheduler={name}")
    assert (chosen.status, chosen.err) == (2, f"error: {reason}\n")
    other = command("scheduler=lpm")
    assert (other.status, other.err) == (0, f"warning: {reason}; left out\n")


def test_a_failed_job_lets_the_others_run(command: Command, foreign: Path, tmp_path: Path) -> None:
    names = ",".join(f"foreign_policies.{name}" for name in ("Repeating", "Defective", "Newest"))
    done = command("-m", f"scheduler._target_={names}")
    assert done.status == 1
    assert "error: scheduler=foreign_policies.Repeating" in done.err
    assert "KeyError: 'a defect'" in done.err
    assert len(folders(tmp_path / "out")) == 1


def test_a_traceback_can_be_asked_for(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    done = command("replicas=0")
    assert done.status == 2
    assert "Traceback" in done.err
