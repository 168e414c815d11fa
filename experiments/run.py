"""Runs one experiment, or a sweep of them, each into a folder of its own.

    python -m experiments.run workload=mooncake scheduler=lpm hardware=h100
    python -m experiments.run -m scheduler=fcfs,lpm cache.tokens=100000,400000 seed=0,1
    python -m experiments.run scheduler._target_=my_module.MyPolicy

A user's mistake gives one line and exit status 2; HYDRA_FULL_ERROR=1 gives the traceback.
"""

from __future__ import annotations

import math
import os
import re
import sys
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import env_override
from hydra.errors import HydraException, InstantiationException, MissingConfigException
from hydra.types import RunMode
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigKeyError, MissingMandatoryValue, OmegaConfBaseException

from experiments.config import POLICY_GROUPS, Options, build_simulation, choices, policy_choice
from experiments.identity import digests, overridden, run_name
from experiments.job import run_job
from experiments.simulation import TimeError
from experiments.sweep_progress import FAILED, FINISHED, RunProgress, note, say
from testbed.metrics.results import ResultsError, config_hash, is_complete
from testbed.policies import PolicyError, registry

CONF = Path(__file__).resolve().parent / "conf"
FULL_ERROR = "HYDRA_FULL_ERROR"
MISTAKES = (
    ValueError,
    OSError,
    PolicyError,
    ResultsError,
    HydraException,
    OmegaConfBaseException,
)
"""What a user can cause; anything else is a defect and shows its traceback."""
RUNNING_MISTAKES = (OSError, PolicyError, ResultsError, TimeError)
"""Likewise once a run has begun: any other ValueError then comes from a policy's own code."""
INTERRUPTED = 130
"""What a shell reports of a process that Ctrl-C ended."""
LAUNCHER_EXTRAS = (
    "pip install -e '.[sweeps]' brings joblib's and Slurm's launcher, '.[ray]' brings Ray's"
)


@dataclass
class SweeperOptions:
    """The options of hydra_plugins.resuming_sweeper; here, so that workers without it compose."""

    _target_: str = "hydra_plugins.resuming_sweeper.ResumingSweeper"
    params: dict[str, str] | None = None


def main() -> int:
    """Run what the command line asks for; returns the exit status."""
    wants_traceback = FULL_ERROR in os.environ
    task = Task(wants_traceback)
    start = hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")(task)
    try:
        sys.argv[1:] = with_foreign_policies(sys.argv[1:])
        register_options()
        # Otherwise Hydra prints errors itself, several lines each, and exits.
        with env_override({FULL_ERROR: "1"}):
            start()
    except MISTAKES as error:
        if wants_traceback:
            raise
        say(f"error: {one_line(error)}", sys.stderr)
        return 2
    except KeyboardInterrupt as stop:
        say(str(stop) or "stopped", sys.stderr)
        return INTERRUPTED
    return min(filter(None, task.statuses), default=0)


class ChoiceStore(dict[str, Any]):
    """What Hydra's store holds, neither copied for each config nor sent to a worker with each job.

    Hydra copies it whenever it composes a config, though nothing in it ever changes, and launchers
    send it along, though a worker can make it from the code. named: group and path of the policies
    that were named by their path.
    """

    def __init__(self, held: Mapping[str, Any]) -> None:
        super().__init__(held)
        self.named: set[tuple[str, str]] = set()

    def __deepcopy__(self, memo: object) -> ChoiceStore:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _received_choices, (sorted(self.named),)

    def name_policy(self, group: str, path: str) -> None:
        """Make the class at `path` a value of its group."""
        policy = registry.find(POLICY_GROUPS[group], path)
        name = path.replace(":", ".")
        node = policy_choice(group, name, policy).node
        ConfigStore.instance().store(group=group, name=name, node=node)
        self.named.add((group, path))


def choice_store() -> ChoiceStore:
    """What Hydra's store holds in this process."""
    store = ConfigStore.instance()
    if not isinstance(store.repo, ChoiceStore):
        store.repo = ChoiceStore(store.repo)
    return store.repo


def register_options() -> None:
    """Tell Hydra the schema, every value of every group, and how to name a run's folder."""
    choice_store()
    store = ConfigStore.instance()
    store.store(name="options", node=Options)
    store.store(group="hydra/sweeper", name="resuming", node=SweeperOptions)
    for choice in choices():
        store.store(group=choice.group, name=choice.name, node=choice.node, package=choice.package)
    OmegaConf.register_new_resolver("run_name", run_name, replace=True)


def _received_choices(named: list[tuple[str, str]]) -> ChoiceStore:
    """The choices in a worker process, made when the first job asks for them."""
    held = choice_store()
    if "options.yaml" not in held:
        register_options()
    for group, path in named:
        if (group, path) not in held.named:
            held.name_policy(group, path)
    return held


def with_foreign_policies(arguments: list[str]) -> list[str]:
    """Make classes named by path values of their group, so that they are checked like any other.

    `scheduler=fcfs,module.Class` names one among others; `scheduler._target_=module.Class` takes
    the place of `scheduler=`. Returns the arguments with the former in place of the latter, and
    `module.Class` in place of `module:Class`. ValueError for a name whose policy is broken, too.
    """
    kept: list[str] = []
    for argument in arguments:
        option, _, text = argument.partition("=")
        group = option.removesuffix("._target_")
        if group not in POLICY_GROUPS:
            kept.append(argument)
            continue
        for value in (value.strip("'\" ") for value in text.split(",")):
            if registry.is_path(value):
                choice_store().name_policy(group, value)
            elif option == group and value in registry.broken():
                registry.find(POLICY_GROUPS[group], value)
            elif option != group:
                raise ValueError(f"{argument}: package.module.Class is needed")
        if option != group:
            kept = [other for other in kept if not other.startswith(f"{group}=")]
        kept.append(f"{group}={text.replace(':', '.')}")
    return kept


class Task:
    """What Hydra calls for each job; statuses: those of the jobs so far, in this process."""

    def __init__(self, wants_traceback: bool) -> None:
        self.statuses: list[int] = []
        self._wants_traceback = wants_traceback

    def __call__(self, config: DictConfig) -> int:
        """Run one job unless its folder is complete; returns 0, 2 for a mistake, 1 for a defect."""
        settings = HydraConfig.get()
        folder, in_sweep = Path(settings.runtime.output_dir), settings.mode is RunMode.MULTIRUN
        status = _run_one(config, folder, in_sweep, self._wants_traceback)
        self.statuses.append(status)
        if in_sweep:
            note(folder, FAILED if status else FINISHED)
        return status

    def is_complete(self, config: DictConfig, folder: Path) -> bool:
        """Whether nothing is left to do; what is wrong with a config is for its job to say."""
        try:
            return is_complete(folder, config_hash(_options(without_hydra(config))))
        except MISTAKES:
            return False


def without_hydra(config: DictConfig) -> DictConfig:
    """The options alone, of what Hydra composed."""
    return OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"])


def _options(config: DictConfig) -> dict[str, Any]:
    """All that a run depends on, as plain values."""
    check_options(config)
    options: dict[str, Any] = OmegaConf.to_container(  # type: ignore[assignment]
        config, resolve=True, enum_to_str=True, throw_on_missing=True
    )
    # Where a run lies does not change what it is.
    if not options.pop("output"):
        raise ValueError("output='': the name of a folder is needed")
    options["inputs"] = digests(options)
    return options


def _run_one(config: DictConfig, folder: Path, in_sweep: bool, wants_traceback: bool) -> int:
    settings = HydraConfig.get()
    overrides = [o for o in settings.overrides.task if not o.startswith("output=")]
    label = " ".join(overrides) or "defaults"
    mistakes: tuple[type[Exception], ...] = MISTAKES
    try:
        options = _options(config)
        if is_complete(folder, config_hash(options)):
            print(f"{label}: complete, skipped", file=sys.stderr)
            return 0
        # Even where a group was left alone, its choice is what a sweep is compared by.
        chosen = {
            group: choice for group, choice in settings.runtime.choices.items() if group in options
        }
        simulation = build_simulation(options, partial(instantiate, _convert_="all"))
        simulation.check()
        mistakes = RUNNING_MISTAKES
        total, unit = len(simulation.workload), simulation.unit
        with RunProgress(folder, total, label, unit, in_sweep=in_sweep) as bar:
            summary = run_job(
                simulation,
                folder,
                config=options,
                overrides={**chosen, **overridden(overrides, options)},
                progress=bar.show,
            )
    except (Exception, SystemExit) as error:
        # What a class raises while it is made comes wrapped; a defect in it is none of the user's.
        made = isinstance(error, InstantiationException) and error.__cause__ is not None
        cause = error.__cause__ if made else error
        is_mistake = isinstance(cause, (*mistakes, ImportError) if made else mistakes)
        if is_mistake and not wants_traceback:
            where = f"{label}: " if in_sweep else ""
            say(f"error: {where}{one_line(error)}", sys.stderr)
        else:
            say(f"error: {label}", sys.stderr)
            traceback.print_exc()
        return 2 if is_mistake else 1
    finally:
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
    say(f"{label}: {_outcome(summary)}; {_shown(folder)}", sys.stdout)
    return 0


def _outcome(summary: Mapping[str, float]) -> str:
    """The line that ends a run."""
    parts = []
    if summary["finished"]:
        parts += [
            f"hit rate {summary['hit_rate']:.3f}",
            f"mean TTFT {summary['ttft_mean_s']:.3f} s",
            f"{summary['requests_per_s']:.2f} requests/s",
        ]
    if summary["max_service_gap"] > 0:
        parts.append(f"service gap {summary['max_service_gap']:,.0f} tokens")
    if summary["refused"]:
        parts.append(f"{summary['refused']:,} of {summary['requests']:,} requests refused")
    if summary["skipped_lines"]:
        parts.append(f"{summary['skipped_lines']:,} bad lines skipped")
    return ", ".join(parts)


def check_options(config: DictConfig, path: str = "") -> None:
    """Refuse what the types let pass: options added with `+`, numbers that cannot be."""
    schema = OmegaConf.get_type(config)
    known = [field.name for field in fields(schema)] if is_dataclass(schema) else list(config)
    for key in config:
        name = f"{path}{key!s}"
        if key not in known:
            raise ValueError(unknown_option(name, known))
        node = None if OmegaConf.is_missing(config, key) else config[key]
        if isinstance(node, DictConfig):
            check_options(node, f"{name}.")
        elif isinstance(node, float) and not math.isfinite(node):
            raise ValueError(f"{name}={node}: a finite number is needed")
        elif name == "seed" and isinstance(node, int) and node < 0:
            raise ValueError(f"seed={node}: a whole number of at least 0 is needed")


def _shown(folder: Path) -> Path:
    return folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder


def one_line(error: BaseException) -> str:
    """What is wrong, with what value, and what would be accepted, on one line."""
    cause = error.__cause__
    launchers = re.findall(r"'hydra/launcher/(\w+)'", str(error))
    if isinstance(error, MissingConfigException) and launchers:
        return f"hydra/launcher={launchers[-1]}: there is none; {LAUNCHER_EXTRAS}"
    if isinstance(error, MissingConfigException) and error.options and error.missing_cfg_file:
        group, _, name = error.missing_cfg_file.rpartition("/")
        return f"{group}={name}: one of {', '.join(error.options)} is needed"
    if isinstance(error, InstantiationException) and cause is not None:
        target = re.search(r"target '([^']+)'", str(error))
        name, text = target[1].rpartition(".")[2] if target else "", _flat(str(cause))
        return text if text.startswith(name) else f"{name}: {text}"
    if isinstance(error, OmegaConfBaseException):
        return _config_mistake(error)
    if isinstance(cause, OmegaConfBaseException):
        return _config_mistake(cause)
    if isinstance(error, FileExistsError):
        return f"{error.filename}: a folder is needed, and something else is there"
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return _flat(str(error))


def _config_mistake(error: OmegaConfBaseException) -> str:
    if isinstance(error, MissingMandatoryValue):
        return f"{error.full_key}: a value is needed"
    if isinstance(error, ConfigKeyError) or "not in" in str(error):
        return unknown_option(str(error.full_key), [str(key) for key in error.parent_node])
    return f"{error.full_key}: {str(error).splitlines()[0]}"


def unknown_option(name: str, known: Iterable[str]) -> str:
    """The message for an option that nothing reads."""
    owner = name.rpartition(".")[0] or "an experiment"
    accepted = ", ".join(key for key in known if key not in ("_target_", "hydra"))
    return f"{name}: no such option; {owner} has {accepted or 'none'}"


def _flat(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


if __name__ == "__main__":
    # What a launcher sends to a worker is then found there by its name, not sent along as code.
    from experiments.run import main as importable_main

    sys.exit(importable_main())
