"""Sweeps: what is left of a killed one, what the display says, and each launcher."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest

from experiments import run
from experiments.sweep_progress import FAILED, FINISHED, JOURNAL, SweepDisplay, Tally, note
from testbed import load
from testbed.metrics.results import COMPLETE
from testbed.reports.comparison import compare

from .conftest import Command

ROOT = Path(__file__).resolve().parents[2]
SWEEP = ("-m", "scheduler=fcfs,lpm", "seed=range(0,3)", "workload.num_requests=12")
RUNS = 6
FSYNCS = 8
"""Of one run: two tables, three texts and the marker; its folder; and, once that has its name, the
folder around it."""


def contents(output: Path) -> dict[str, bytes]:
    """Every file of a sweep but the manifests, which hold wall times."""
    return {
        str(path.relative_to(output)): path.read_bytes()
        for path in output.rglob("*")
        if path.is_file() and path.name != "manifest.json"
    }


def written(output: Path) -> dict[str, int]:
    """When each complete run was written."""
    return {
        marker.parent.name: (marker.parent / "manifest.json").stat().st_mtime_ns
        for marker in output.glob(f"*/{COMPLETE}")
    }


def start(output: Path, *arguments: str, program: str | None = None) -> subprocess.Popen[str]:
    """The sweep in a process group of its own; program: run in place of experiments.run."""
    return subprocess.Popen(
        [
            sys.executable,
            *(("-c", program) if program else ("-m", "experiments.run")),
            *SWEEP,
            *arguments,
            f"output={output}",
        ],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )


def finish(output: Path, *arguments: str) -> None:
    process = start(output, *arguments)
    _, errors = process.communicate()
    assert process.returncode == 0, errors


# ---- killed sweeps


DIES_AT_A_SYNC = """
    import os, signal, sys
    left = {left}
    sync = os.fsync
    def fsync(file):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        sync(file)
    os.fsync = fsync
    from experiments.run import main
    sys.exit(main())
"""


def test_a_sweep_killed_while_it_writes_ends_as_an_unbroken_one(
    command: Command, tmp_path: Path
) -> None:
    rng = random.Random(5)
    before: dict[str, int] = {}
    for _ in range(2):
        # Not every run is complete yet, so that so many more come.
        left = rng.randrange(1, FSYNCS * (RUNS - len(before)))
        process = start(tmp_path / "killed", program=dedent(DIES_AT_A_SYNC.format(left=left)))
        process.communicate()
        assert process.returncode == -signal.SIGKILL
        kept = written(tmp_path / "killed")
        assert len(kept) - len(before) == left // FSYNCS
        assert before.items() <= kept.items()
        before = kept
    finish(tmp_path / "killed")
    assert before.items() <= written(tmp_path / "killed").items()
    command(*SWEEP, small=False)
    assert contents(tmp_path / "killed") == contents(tmp_path / "out")
    assert len(written(tmp_path / "out")) == RUNS


@pytest.mark.slow
def test_a_parallel_sweep_killed_at_any_time_ends_as_an_unbroken_one(tmp_path: Path) -> None:
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    parallel = ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "seed=range(0,10)")
    began = time.monotonic()
    finish(tmp_path / "unbroken", *parallel)
    duration = time.monotonic() - began
    rng = random.Random(7)
    before: dict[str, int] = {}
    for _ in range(5):
        process = start(tmp_path / "killed", *parallel)
        time.sleep(rng.uniform(0.3, 1.0) * duration)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        kept = written(tmp_path / "killed")
        assert before.items() <= kept.items()
        before = kept
    finish(tmp_path / "killed", *parallel)
    assert before.items() <= written(tmp_path / "killed").items()
    assert contents(tmp_path / "killed") == contents(tmp_path / "unbroken")


def test_ctrl_c_stops_a_sweep_with_one_line(tmp_path: Path) -> None:
    process = start(tmp_path, "seed=range(0,1000)")
    assert process.stdout is not None
    process.stdout.readline()
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate()
    assert (process.returncode, errors) == (130, "stopped; the same line goes on\n")
    assert written(tmp_path)
    assert [path.name for path in tmp_path.iterdir() if not path.is_dir()] == []


# ---- values


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["seed=range(0,0)"], "seed=range(0,0): no value; at least one is needed"),
        (["seed=glob(*)"], "seed=glob(*): no value; at least one is needed"),
        (["output=a,b"], "output=a,b: one folder is needed, for all runs of the sweep"),
        # Each of them beside a value that could run.
        (["seed=1,-1"], "seed=-1: a whole number of at least 0 is needed"),
        (["staleness=1,nan,2"], "staleness=nan: a finite number is needed"),
        (["scheduler=fcfs,lmp"], "scheduler=lmp: one of dfs, "),
    ],
)
def test_what_is_wrong_with_a_value_is_said_before_any_run(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    values: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["run", "-m", "workload.num_requests=12", *values])
    assert run.main() == 2
    shown = capsys.readouterr()
    assert (shown.out, shown.err.count("\n")) == ("", 1)
    assert shown.err.startswith(f"error: {message}")
    assert list(tmp_path.iterdir()) == []


def test_something_else_in_a_folder_s_place_is_said_before_any_run(
    command: Command, tmp_path: Path
) -> None:
    command("-m", "seed=0,1")
    name = sorted(written(tmp_path / "out"))[0]
    shutil.rmtree(tmp_path / "out" / name)
    (tmp_path / "out" / name).symlink_to("nowhere")
    done = command("-m", "seed=0,1,2")
    assert (done.status, done.out, done.err.count("\n")) == (2, "", 1)
    assert done.err.startswith("error: seed=")
    assert f"/{name}: a folder is needed, and something else is there" in done.err


# ---- seeds


def test_seeds_are_an_axis_with_intervals(command: Command, tmp_path: Path) -> None:
    command(*SWEEP, small=False)
    results = load(tmp_path / "out")
    assert sorted(results.summary["seed"]) == [0, 0, 1, 1, 2, 2]
    comparison = compare(results)
    assert list(comparison.groups) == ["fcfs", "lpm"]
    rates = results.summary.groupby("scheduler")["hit_rate"]
    for name in ("fcfs", "lpm"):
        interval = comparison.interval(name, "hit_rate")
        # Student's t of 0.975 with two degrees of freedom, by a printed table.
        assert interval.half_width == pytest.approx(4.303 * rates.std()[name] / 3**0.5, rel=1e-3)


# ---- the display


def test_a_tally_counts_the_runs_of_its_sweep(tmp_path: Path) -> None:
    note(tmp_path / "a", FINISHED)  # by a sweep that was killed
    tally = Tally(tmp_path / JOURNAL, ["a", "b", "c", "d"])
    tally.update()
    assert (tally.ended, tally.running, tally.work) == (0, 0, 0)
    note(tmp_path / "a", 0.0)
    note(tmp_path / "b", 0.25)
    note(tmp_path / "stranger", FINISHED)
    note(tmp_path / "c", 0.5)
    note(tmp_path / "c", FAILED)
    tally.update()
    assert (tally.ended, tally.failed, tally.running, tally.work) == (1, 1, 2, 1.25)
    with (tmp_path / JOURNAL).open("a") as journal:
        journal.write("a finis")
    tally.update()
    assert tally.ended == 1
    (tmp_path / JOURNAL).unlink()
    note(tmp_path / "a", FINISHED)
    tally.update()
    assert (tally.ended, tally.work) == (2, 2.25)


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
def test_a_journal_that_cannot_be_written_stops_no_sweep(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    make(tmp_path / JOURNAL)
    tally = Tally(tmp_path / JOURNAL, ["a"])
    note(tmp_path / "a", FINISHED)
    tally.update()
    assert tally.ended == 0
    with SweepDisplay(tmp_path, ["a"], 0):
        pass


def test_a_terminal_shows_how_far_the_sweep_is(tmp_path: Path) -> None:
    reader, terminal = os.openpty()
    termios.tcsetwinsize(terminal, (24, 100))
    process = subprocess.Popen(
        [sys.executable, "-m", "experiments.run", *SWEEP, f"output={tmp_path}"],
        cwd=ROOT,
        stdout=terminal,
        stderr=terminal,
    )
    os.close(terminal)
    shown = ""
    while True:
        try:
            shown += os.read(reader, 4096).decode()
        except OSError:  # the other side is closed
            break
    os.close(reader)
    assert process.wait() == 0
    assert f"sweep: 0 of {RUNS} runs" in shown
    assert f"sweep: {RUNS} of {RUNS} runs |" in shown
    # Every run's own line stands alone, whatever the display drew before.
    lines = [line.rpartition("\x1b[K")[2] for line in shown.splitlines() if "hit rate" in line]
    assert len(lines) == RUNS
    assert all(line.startswith("scheduler=") for line in lines)
    assert not (tmp_path / JOURNAL).exists()


def test_a_log_is_free_of_the_display(command: Command) -> None:
    shown = command(*SWEEP, small=False).err
    assert "sweep:" not in shown
    assert not set(shown) & {"\r", "\x1b"}


# ---- launchers


@pytest.mark.parametrize(
    ("plugin", "options"),
    [
        ("joblib", ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]),
        ("submitit", ["hydra/launcher=submitit_local"]),
        ("ray", ["hydra/launcher=ray_local"]),
    ],
)
def test_every_launcher_gives_the_same_runs(
    command: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    plugin: str,
    options: list[str],
) -> None:
    pytest.importorskip(f"hydra_plugins.hydra_{plugin}_launcher")
    monkeypatch.setenv("HOME", str(tmp_path))  # Ray writes a token there.
    few = ("seed=0,1", *options)
    finish(tmp_path / plugin, *few)
    command(*SWEEP, "seed=0,1", small=False)
    runs = {name: data for name, data in contents(tmp_path / plugin).items() if name[0] != "."}
    assert runs == contents(tmp_path / "out")


SBATCH = """
#!/bin/sh
# Runs the tasks of the array here; its script is the last argument.
for script; do :; done
cp "$script" "$(dirname "$0")/submitted"
echo Submitted batch job 7
for task in 0 1; do
  SLURM_JOB_ID=7 SLURM_ARRAY_JOB_ID=7 SLURM_ARRAY_TASK_ID=$task SLURM_PROCID=0 SLURM_LOCALID=0 \\
  SLURM_NODEID=0 SLURM_NTASKS=1 SLURM_JOB_NUM_NODES=1 SLURM_JOB_NODELIST=here \\
  sh "$script" >/dev/null 2>&1 &
done
"""
SRUN = """
#!/bin/sh
until [ "${1%python*}" != "$1" ]; do shift; done
exec "$@"
"""
SACCT = """
#!/bin/sh
echo 'JobID|State|NodeList'
"""


def test_slurm_is_asked_for_the_missing_runs(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
    stand_ins = tmp_path / "bin"
    stand_ins.mkdir()
    for name, text in (("sbatch", SBATCH), ("srun", SRUN), ("sacct", SACCT)):
        (stand_ins / name).write_text(text.lstrip())
        (stand_ins / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{stand_ins}:{os.environ['PATH']}")
    command("-m", "seed=0,1")
    slurm = ("hydra/launcher=slurm", "hydra.launcher.partition=cpu")
    done = command("-m", *slurm, "seed=range(0,4)")
    assert done.status == 0
    assert "2 of 4 runs: complete, skipped\n" in done.err
    assert len(written(tmp_path / "out")) == 4
    submitted = (stand_ins / "submitted").read_text()
    for asked in ("--array=0-1%2", "--partition=cpu", "--cpus-per-task=1", "--mem=4GB"):
        assert f"#SBATCH {asked}\n" in submitted


def test_it_is_said_where_jobs_that_print_elsewhere_have_failed(
    command: Command, tmp_path: Path
) -> None:
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
    local = ("hydra/launcher=submitit_local", "scheduler=dlpm")
    done = command("-m", *local, "scheduler.quantum=0,5000")
    logs = tmp_path / "out" / ".submitit"
    said = f"1 of 2 runs failed; what they printed lies under {logs}\n"
    assert (done.status, done.err) == (2, said)
    assert any("quantum=0" in log.read_text() for log in logs.rglob("*.err"))


def test_a_launcher_that_is_not_installed_is_a_mistake(command: Command) -> None:
    done = command("-m", "hydra/launcher=no_such")
    assert (done.status, done.err.count("\n")) == (2, 1)
    assert "hydra/launcher=no_such: there is none; pip install -e '.[sweeps]'" in done.err


def test_a_failed_run_of_a_worker_lets_the_others_run(command: Command, tmp_path: Path) -> None:
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    parallel = ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2")
    done = command("-m", *parallel, "scheduler=dlpm", "scheduler.quantum=0,5000")
    assert done.status == 2
    assert "quantum=0" in done.err
    assert len(written(tmp_path / "out")) == 1


def test_a_run_of_another_config_is_refused_after_the_others(
    command: Command, tmp_path: Path
) -> None:
    command("-m", "seed=0,1")
    last = sorted(written(tmp_path / "out"))[-1]
    (tmp_path / "out" / last / COMPLETE).write_text("0123456789abcdef\n")
    done = command("-m", "seed=0,1,2")
    assert done.status == 2
    assert done.err.count("another config") == 1
    assert len(written(tmp_path / "out")) == 3
