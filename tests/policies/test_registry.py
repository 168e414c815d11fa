"""Policies by name, by entry point and by path; what is wrong is said in terms of names."""

from __future__ import annotations

import re
from importlib.metadata import EntryPoint
from pathlib import Path
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


class Misfit(Fcfs):
    """A default of another type than declared."""

    def __init__(self, stride: int = "far") -> None:  # type: ignore[assignment]
        super().__init__()


class Unknown(Fcfs):
    """An annotation that names nothing."""

    def __init__(self, stride: Nothing = 1) -> None:  # type: ignore[name-defined]  # noqa: F821
        super().__init__()


class Demanding(Fcfs):
    """A parameter without a default."""

    def __init__(self, stride: int) -> None:
        super().__init__()


def function() -> None:
    """No class."""


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


def test_a_parameter_without_a_default_is_needed() -> None:
    with pytest.raises(ValueError, match="Demanding: stride: a value is needed"):
        registry.scheduling(f"{HERE}:Demanding")


def test_a_class_by_its_path() -> None:
    assert registry.find("scheduling", f"{HERE}.Impatient") is Impatient
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
        (f"{HERE}:", "package.module:Class is needed"),
        (":Class", "':Class': package.module:Class is needed"),
        ("..", "'..': package.module:Class is needed"),
        (f"{HERE}:Misfit", "Misfit: default stride='far': int is needed"),
        (f"{HERE}:Unknown", "signature of Unknown: NameError: name 'Nothing' is not defined"),
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


@pytest.mark.parametrize(
    ("value", "source", "reason"),
    [
        ("broken_a:Policy", "import no_such_dependency", "No module named 'no_such_dependency'"),
        ("broken_b:Policy", "class :", "SyntaxError: invalid syntax (broken_b.py, line 1)"),
        ("broken_c:Policy", "\nundefined", "'undefined' is not defined (broken_c.py, line 2)"),
        ("broken_d:Policy", "raise SystemExit", "SystemExit (broken_d.py, line 1)"),
        ("broken_e", "import no_such_dependency", "No module named 'no_such_dependency'"),
        (f"{HERE}:function", "", "is no class of scheduling, eviction or routing policies"),
        (f"{HERE}:NOT_A_POLICY", "", "7 is no class of scheduling, eviction or routing"),
        (f"{HERE}:Unfinished", "", "Unfinished is abstract, it lacks candidates"),
        (f"{HERE}:Misfit", "", "default stride='far': int is needed"),
        (f"{HERE}:Unknown", "", "NameError: name 'Nothing' is not defined"),
    ],
)
def test_a_broken_entry_point_is_left_out(
    value: str,
    source: str,
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / f"{value.partition(':')[0]}.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    points = [
        EntryPoint(name, path, registry.ENTRY_POINT_GROUP)
        for name, path in (("broken", value), ("impatient", f"{HERE}:Impatient"))
    ]
    monkeypatch.setattr(registry, "entry_points", lambda group: points)
    for _ in range(2):
        assert registry.names("scheduling") == (*registry.BUILT_IN["scheduling"], "impatient")
        assert registry.names("eviction") == tuple(registry.BUILT_IN["eviction"])
    warning = capsys.readouterr().err
    assert warning.startswith(f"warning: policy broken of entry point {value}: ")
    assert reason in warning and warning.count("\n") == 1
    assert registry.find("scheduling", "impatient") is Impatient
    for ask in (registry.kinds, lambda name: registry.find("scheduling", name)):
        with pytest.raises(ValueError, match=re.escape(reason)):
            ask("broken")
