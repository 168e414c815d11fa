"""Policies by name, by entry point and by path; what is wrong is said in terms of names."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from typing import Any

import pytest

from testbed.policies import EvictionPolicy, RoutingPolicy, SchedulingPolicy, registry
from testbed.policies.scheduling.arrival import Fcfs
from testbed.policies.scheduling.cache_aware import Lpm
from tests.core.building import Mru

HERE = __name__


class Impatient(Fcfs):
    """A policy of somebody else's package."""

    def __init__(self, patience: int = 3) -> None:
        super().__init__()
        self.patience = patience


class Unfinished(SchedulingPolicy):
    """Lacks candidates()."""


NOT_A_POLICY = 7


@pytest.fixture
def foreign(monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed package with two entry points."""
    points = (
        EntryPoint("impatient", f"{HERE}:Impatient", registry.ENTRY_POINT_GROUP),
        EntryPoint("newest", "tests.core.building:Mru", registry.ENTRY_POINT_GROUP),
    )
    monkeypatch.setattr(registry, "entry_points", lambda group: points)


@pytest.mark.parametrize("kind", ["scheduling", "eviction", "routing"])
def test_every_built_in_policy_can_be_made(kind: Any) -> None:
    base: Any = {
        "scheduling": SchedulingPolicy,
        "eviction": EvictionPolicy,
        "routing": RoutingPolicy,
    }[kind]
    names = registry.names(kind)
    assert names
    for name in names:
        assert isinstance(registry.create(kind, name), base)


def test_the_names_are_the_documented_ones() -> None:
    assert {"fcfs", "lpm", "dfs", "dfs_weight", "vtc", "dlpm"} <= set(registry.names("scheduling"))
    assert {"lru", "lfu", "fifo"} <= set(registry.names("eviction"))
    assert {"round_robin", "least_loaded"} <= set(registry.names("routing"))


def test_parameters_are_passed_on() -> None:
    policy = registry.scheduling("lpm", on_misfit="skip", dedupe_check=5)
    assert isinstance(policy, Lpm)
    with pytest.raises(ValueError, match="on_misfit='x': stop or skip is needed"):
        registry.scheduling("lpm", on_misfit="x")


def test_each_call_makes_a_new_one() -> None:
    assert registry.scheduling("lpm") is not registry.scheduling("lpm")


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"unknown scheduling policy 'lmp': one of fcfs, lpm, dfs"):
        registry.scheduling("lmp")
    with pytest.raises(ValueError, match="unknown routing policy 'lru'"):
        registry.routing("lru")


def test_an_unknown_parameter_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match="lpm: no parameter 'misfit'; it takes on_misfit, dedupe"):
        registry.scheduling("lpm", misfit="skip")
    with pytest.raises(ValueError, match="lru: no parameter 'size'; it takes no parameters"):
        registry.eviction("lru", size=3)


def test_a_class_by_its_path() -> None:
    policy = registry.scheduling(f"{HERE}:Impatient", patience=9)
    assert isinstance(policy, Impatient) and policy.patience == 9
    assert isinstance(registry.eviction("tests.core.building:Mru"), Mru)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("no_such_package.module:Class", "no_such_package.module:Class: No module named"),
        (f"{HERE}:Absent", f"{HERE}:Absent: .*has no attribute 'Absent'"),
        (f"{HERE}:NOT_A_POLICY", "7 is no concrete SchedulingPolicy"),
        (f"{HERE}:Unfinished", "is no concrete SchedulingPolicy"),
        ("tests.core.building:Mru", "is no concrete SchedulingPolicy"),
        (f"{HERE}:", "no concrete SchedulingPolicy|has no attribute"),
    ],
)
def test_a_path_must_lead_to_a_policy_of_the_kind(path: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        registry.scheduling(path)


@pytest.mark.usefixtures("foreign")
def test_an_entry_point_adds_a_policy_without_an_edit() -> None:
    assert registry.names("scheduling")[-1] == "impatient"
    assert registry.names("eviction")[-1] == "newest"
    assert registry.names("routing") == tuple(registry.BUILT_IN["routing"])
    policy = registry.scheduling("impatient", patience=5)
    assert isinstance(policy, Impatient) and policy.patience == 5
    assert isinstance(registry.eviction("newest"), Mru)


@pytest.mark.usefixtures("foreign")
def test_an_entry_point_of_another_kind_is_no_answer() -> None:
    with pytest.raises(ValueError, match=r"impatient: .* is no concrete RoutingPolicy"):
        registry.routing("impatient")
