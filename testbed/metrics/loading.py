"""Run folders as pandas frames."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from testbed.core.records import (
    ADDED_COLUMNS,
    DECISION_COLUMNS,
    MEASURED_COLUMNS,
    REQUEST_COLUMNS,
    STEP_COLUMNS,
    Column,
)
from testbed.metrics.results import COMPLETE, FAILED, ResultsError, arrow_schema
from testbed.metrics.service import EXTENDED, TOTAL


class Results:
    """One run or a sweep. Frames are read when they are first asked for; `run` names the folder.

    folders: the run folders by name, sorted.
    """

    def __init__(self, folders: Mapping[str, Path]) -> None:
        self.folders = dict(folders)

    @cached_property
    def requests(self) -> pd.DataFrame:
        """The columns of testbed.core.records.REQUEST_COLUMNS after `run`."""
        return self._tables("requests", REQUEST_COLUMNS)

    @cached_property
    def steps(self) -> pd.DataFrame:
        """Likewise STEP_COLUMNS; runs that did not write them have no rows."""
        return self._tables("steps", STEP_COLUMNS)

    @cached_property
    def decisions(self) -> pd.DataFrame:
        """Likewise DECISION_COLUMNS; runs that did not record them have no rows."""
        return self._tables("decisions", DECISION_COLUMNS)

    @cached_property
    def added(self) -> pd.DataFrame:
        """Likewise ADDED_COLUMNS, of engine runs; simulated ones have no rows."""
        return self._tables("added", ADDED_COLUMNS)

    @cached_property
    def measured(self) -> pd.DataFrame:
        """Likewise MEASURED_COLUMNS, of engine runs."""
        return self._tables("measured", MEASURED_COLUMNS)

    @cached_property
    def clients(self) -> pd.DataFrame:
        """One row for each `run` and `client`, over the requests that were admitted.

        requests; prompt_tokens, cached_tokens, output_tokens; hit_rate; service and
        extended_service, in the weighted tokens of testbed.metrics.service TOTAL and EXTENDED, not
        divided by the client's weight; ttft_mean_s, ttft_p50_s, ttft_p99_s. A client that asks for
        less than its share is isolated if these do not depend on what the others ask for.
        """
        return self._served("client")

    @cached_property
    def programs(self) -> pd.DataFrame:
        """The same for each `run` and `program`; requests of no program are left out."""
        table = self._served("program")
        return table[table["program"] != ""].reset_index(drop=True)

    def _served(self, whom: str) -> pd.DataFrame:
        admitted = self.requests[self.requests["admitted_step"] >= 0]
        table = (
            admitted.assign(ttft_s=admitted["first_token_s"] - admitted["arrival_s"])
            .groupby(["run", whom], as_index=False)
            .agg(
                requests=("request", "size"),
                prompt_tokens=("prompt_tokens", "sum"),
                cached_tokens=("cached_tokens", "sum"),
                output_tokens=("output_tokens", "sum"),
                ttft_mean_s=("ttft_s", "mean"),
                ttft_p50_s=("ttft_s", "median"),
                ttft_p99_s=("ttft_s", lambda times: times.quantile(0.99)),
            )
        )
        given = TOTAL.prompt * table["prompt_tokens"] + TOTAL.output * table["output_tokens"]
        reused = EXTENDED.prompt * table["cached_tokens"]
        return table.assign(
            hit_rate=table["cached_tokens"] / table["prompt_tokens"],
            service=given,
            extended_service=given - reused,
        )

    @cached_property
    def config(self) -> pd.DataFrame:
        """One row a run: `run`, `seed`, and every option by its dotted name."""
        rows = [
            {"run": name, "seed": manifest["seed"], **_flat(config)}
            for name, config, manifest in self._described
        ]
        return pd.DataFrame(rows)

    @property
    def configs(self) -> dict[str, dict[str, Any]]:
        """The resolved config of each run, as it was written."""
        return {name: config for name, config, _ in self._described}

    @property
    def manifests(self) -> dict[str, dict[str, Any]]:
        """The manifest of each run: commit, versions, machine, seed, overrides, counters."""
        return {name: manifest for name, _, manifest in self._described}

    @property
    def overrides(self) -> list[str]:
        """The options that were overridden in at least one run, `seed` left out."""
        named = (name for _, _, manifest in self._described for name in manifest["overrides"])
        return [name for name in dict.fromkeys(named) if name != "seed"]

    @cached_property
    def oracle_runs(self) -> frozenset[str]:
        """The runs with a policy that was told what no real system knows."""
        return frozenset(name for name, _, manifest in self._described if manifest.get("oracles"))

    @cached_property
    def summary(self) -> pd.DataFrame:
        """One row a run: `run`, `seed`, the overrides, and the columns of summary.json.

        A run that left an option alone shows the value in its config.
        """
        overrides = self.overrides
        rows = []
        for name, config, manifest in self._described:
            flat = _flat(config)
            set_here = manifest["overrides"]
            chosen = {key: set_here.get(key, flat.get(key)) for key in overrides}
            numbers = _read(self.folders[name] / "summary.json", json.loads)
            rows.append({"run": name, "seed": manifest["seed"], **chosen, **numbers})
        frame = pd.DataFrame(rows)
        # A metric without a sample is null; alone in its column it would not even be a number.
        options = ("run", "seed", *overrides)
        without = [name for name in frame if name not in options and frame[name].isna().all()]
        return frame.astype(dict.fromkeys(without, float))

    @cached_property
    def _described(self) -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
        """Name, config and manifest of each run."""
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        return [
            (
                name,
                _read(folder / "config.yaml", partial(yaml.load, Loader=loader)),
                _read(folder / "manifest.json", json.loads, ("seed", "overrides")),
            )
            for name, folder in self.folders.items()
        ]

    def _tables(self, table: str, schema: Mapping[str, Column]) -> pd.DataFrame:
        frames = []
        for name, folder in self.folders.items():
            path = folder / f"{table}.parquet"
            if path.exists() or table == "requests":
                try:
                    frame = pd.read_parquet(path, columns=list(schema))
                except (OSError, ValueError) as error:
                    raise ResultsError(f"{path} is missing or damaged: {error}") from error
                frame.insert(0, "run", name)
                frames.append(frame)
        if not frames:
            empty = arrow_schema(schema).empty_table().to_pandas()
            empty.insert(0, "run", pd.Series(dtype="str"))
            return empty
        return pd.concat(frames, ignore_index=True)


def load(path: str | Path) -> Results:
    """Read one run folder, or every complete run below a folder.

    Raises ResultsError where there is none. Runs are named by their path below `path`; a run that
    is loaded by itself has its folder's name.
    """
    if not str(path):
        raise ResultsError("an empty path: the folder of a run or of a sweep is needed")
    root = Path(path)
    if root.exists() and not root.is_dir():
        raise ResultsError(f"{root} is a file; the folder of a run or of a sweep is needed")
    if not root.is_dir():
        raise ResultsError(f"{root}: no such folder; the folder of a run or of a sweep is needed")
    if (root / COMPLETE).is_file():
        return Results({root.resolve().name: root})
    markers = sorted(
        marker
        for marker in root.rglob(COMPLETE)
        if not any(part.startswith(".") for part in marker.relative_to(root).parts)
    )
    if not markers and (root / FAILED).is_file():
        raise ResultsError(f"{root}: the run failed: {(root / FAILED).read_text().strip()}")
    if not markers:
        raise ResultsError(
            f"{root}: no complete run in it; a run is complete once it has {COMPLETE}"
        )
    return Results({m.parent.relative_to(root).as_posix(): m.parent for m in markers})


def commit_of(manifest: Mapping[str, Any]) -> str:
    """The first 12 digits of a run's commit, with -dirty if the checkout was changed."""
    name, dash, dirty = str(manifest.get("git_commit") or "unknown").partition("-")
    return name[:12] + dash + dirty


def _read(path: Path, parse: Callable[[str], Any], needed: tuple[str, ...] = ()) -> dict[str, Any]:
    """A file of a complete run; ResultsError if it is not what a run writes."""
    try:
        values = parse(path.read_text())
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ResultsError(f"{path} is missing or damaged: {error}") from error
    if not isinstance(values, dict) or not values.keys() >= set(needed):
        raise ResultsError(f"{path} is damaged: {', '.join(needed) or 'named values'} are needed")
    return values


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Dotted names; a group whose `_target_` is a class also has that class's name as its value."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            if "_target_" in value:
                flat[name] = _snake_case(str(value["_target_"]).rpartition(".")[2])
            flat |= _flat(value, f"{name}.")
        else:
            flat[name] = value
    return flat


def _snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
