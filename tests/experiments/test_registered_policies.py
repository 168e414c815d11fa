"""A policy of somebody else's, by each of the three ways: the same options in the results."""

from __future__ import annotations

import sys
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

from .conftest import Command

WAYS = {
    "hydra": ["scheduler._target_=their_policies.Newest"],
    "path": ["scheduler=their_policies.Newest"],
    "entry point": ["scheduler=newest"],
    "register": ["scheduler=newest"],
}


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "their_policies.py").write_text(
        dedent("""
        from testbed.policies import SchedulingPolicy, register

        @register("newest")
        class Newest(SchedulingPolicy):
            '''Last come, first served.'''

            oracle = True

            def __init__(self, stride: int = 1, share: float = 0.5) -> None:
                if stride < 1:
                    raise ValueError(f"stride={stride}: at least 1 is needed")

            def candidates(self, view):
                for sequence in sorted(view.waiting, key=lambda s: -s.index):
                    if not (yield sequence):
                        return
        """)
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "their_policies", raising=False)
    # What one test makes an option must not be one in the next; see test_run.foreign.
    Plugins.instance()
    store = ConfigStore.instance()
    monkeypatch.setattr(store, "repo", deepcopy(store.repo))
    return "their_policies"


@pytest.mark.parametrize("way", WAYS)
def test_every_way_leads_to_the_same_options(
    command: Command, tmp_path: Path, module: str, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    if way == "register":
        monkeypatch.setenv(registry.MODULES_VARIABLE, module)
    if way == "entry point":
        point = EntryPoint("newest", f"{module}:Newest", registry.ENTRY_POINT_GROUP)
        monkeypatch.setattr(registry, "entry_points", lambda group: (point,))
    assert command("-m", *WAYS[way], "scheduler.stride=1,2").status == 0
    runs = load(tmp_path / "out")
    assert sorted(runs.config["scheduler.stride"]) == [1, 2]
    configs = [yaml.safe_load((f / "config.yaml").read_text()) for f in runs.folders.values()]
    assert all(
        {**config["scheduler"], "stride": 1}
        == {"_target_": "their_policies.Newest", "stride": 1, "share": 0.5}
        for config in configs
    )
    assert runs.oracle_runs == frozenset(runs.folders)
    for wrong, says in (("scheduler.strid=1", "strid"), ("scheduler.stride=0", "stride=0")):
        refused = command(*WAYS[way], wrong)
        assert refused.status == 2 and says in refused.err
