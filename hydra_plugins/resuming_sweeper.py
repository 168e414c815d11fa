"""The sweeper of `python -m experiments.run -m`, where Hydra looks for plug-ins."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from contextlib import suppress
from itertools import product
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

from experiments.identity import run_name
from experiments.progress import ProgressBar
from experiments.run import Task, check_options, without_hydra
from experiments.sweep_progress import SweepDisplay, say
from testbed.metrics.results import COMPLETE, ResultsError


class ResumingSweeper(Sweeper):
    """Launches every combination of the values whose run is not complete yet.

    As Hydra's basic sweeper, less the complete runs, so that what is left of a sweep asks a
    cluster for no more than it needs; with a live display, and without an end at the first failure.
    params: values by option, as an experiment's config sets them; the command line wins.
    """

    def __init__(self, params: Mapping[str, str] | None = None) -> None:
        self._params = dict(params or {})

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        """Hydra's hook: what there is to sweep over."""
        assert isinstance(task_function, Task)
        self._config, self._loader = config, hydra_context.config_loader
        self._task, self._folder = task_function, Path(config.hydra.sweep.dir)
        self._launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> None:
        """Launch the jobs and leave their exit statuses with the task."""
        try:
            self._sweep(arguments)
        except KeyboardInterrupt as stop:
            raise KeyboardInterrupt("stopped; the same line goes on") from stop

    def _sweep(self, arguments: list[str]) -> None:
        values = self._values(arguments)
        for job in _telling_jobs(values):
            # What is wrong with a value is said before anything runs.
            check_options(without_hydra(self._compose(job)))
        jobs = {run_name(job): job for job in map(list, product(*values.values()))}
        self._check_folders(jobs)
        marked = [name for name in jobs if (self._folder / name / COMPLETE).is_file()]
        # Composing every config again takes its time, and a change shows in any of them: one is
        # looked at now, the others once there is nothing left to run.
        changed = self._changed(jobs, marked[:1]) and self._changed(jobs, marked)
        settled = set(marked) - set(changed)
        if settled:
            say(f"{len(settled)} of {len(jobs)} runs: complete, skipped", sys.stderr)
        self._launch(jobs, [name for name in jobs if name not in settled])
        if not changed:
            self._launch(jobs, self._changed(jobs, marked[1:]))

    def _launch(self, jobs: Mapping[str, list[str]], names: list[str]) -> None:
        if names:
            named = [[*jobs[name], f"hydra.sweep.subdir={name}"] for name in names]
            with SweepDisplay(self._folder, names, len(jobs) - len(names)):
                returns = self._launcher.launch(named, initial_job_idx=0)
            statuses = [returned.return_value for returned in returns]
            self._task.statuses += statuses
            logs = OmegaConf.select(self._config, "hydra.launcher.submitit_folder")
            if logs is not None:
                # Such jobs do not print here.
                failed = f"{sum(map(bool, statuses))} of {len(names)} runs failed"
                say(f"{failed}; what they printed lies under {Path(logs).parent}", sys.stderr)

    def _check_folders(self, jobs: Mapping[str, list[str]]) -> None:
        """ResultsError for something else where a run's folder should be."""
        for name, job in jobs.items():
            folder = self._folder / name
            if not folder.is_dir() and (folder.exists() or folder.is_symlink()):
                raise ResultsError(
                    f"{' '.join(job)}: {folder}: a folder is needed, and something else is there"
                )

    def _changed(self, jobs: Mapping[str, list[str]], names: list[str]) -> list[str]:
        """Those whose folder does not hold the run that they would be; their jobs say why."""
        changed = []
        with ProgressBar(len(names), "checking complete runs", "runs") as bar:
            for done, name in enumerate(names, start=1):
                if not self._task.is_complete(self._compose(jobs[name]), self._folder / name):
                    changed.append(name)
                bar.show(done)
        return changed

    def _values(self, arguments: list[str]) -> dict[str, list[str]]:
        """The overrides to choose from, by option; one that is given twice has its last values."""
        parser = OverridesParser.create(config_loader=self._loader)
        given = [f"{option}={values}" for option, values in self._params.items()] + arguments
        values: dict[str, list[str]] = {}
        lines: dict[str, str] = {}
        for override in parser.parse_overrides(given):
            key = override.get_key_element()
            lines[key] = override.input_line or key
            if not override.is_sweep_override():
                values[key] = [f"{key}={override.get_value_element_as_str()}"]
            elif override.is_discrete_sweep():
                values[key] = [f"{key}={value}" for value in override.sweep_string_iterator()]
            else:
                raise HydraException(
                    f"{override.input_line}: values (a,b,c), choice() or range() are needed"
                )
        for key, axis in values.items():
            if not axis:
                raise HydraException(f"{lines[key]}: no value; at least one is needed")
            if key == "output" and len(axis) > 1:
                raise HydraException(
                    f"{lines[key]}: one folder is needed, for all runs of the sweep"
                )
        return values

    def _compose(self, job: list[str]) -> DictConfig:
        return self._loader.load_sweep_config(self._config, job)


def _telling_jobs(values: Mapping[str, list[str]]) -> list[list[str]]:
    """A few jobs that have every value; where an axis has many numbers, one stands for them."""
    axes = [
        list({_kind(text): text for text in reversed(axis)}.values()) for axis in values.values()
    ]
    longest = max(map(len, axes), default=0)
    return [[axis[min(i, len(axis) - 1)] for axis in axes] for i in range(longest)]


def _kind(override: str) -> str:
    """What decides whether an option takes it: of a number, the type and whether it is odd (below 0
    or not finite); else the value itself."""
    value = override.partition("=")[2]
    for number in (int, float):
        with suppress(ValueError):
            return f"{number.__name__}, {'usual' if 0 <= number(value) < math.inf else 'odd'}"
    return value
