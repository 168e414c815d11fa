"""`@register`, and modules that entry points or TESTBED_POLICIES name."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path
from textwrap import dedent

import pytest

from testbed.policies import SchedulingPolicy, register, registry

HERE = __name__


@register("backwards")
class Backwards(SchedulingPolicy):
    """Last come, first served."""

    def __init__(self, stride: int = 1, share: float = 0.5, loud: bool = False) -> None:
        self.given = (stride, share, loud)

    def candidates(self, view):  # type: ignore[no-untyped-def]
        return iter(reversed(list(view.waiting)))


@register
class LongestWaitFirst(Backwards):
    """Named by its class."""


class Unmarked(Backwards):
    """A subclass does not inherit the name."""


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(registry.MODULES_VARIABLE, HERE)


def test_a_class_is_not_known_before_its_module_is_named() -> None:
    assert "backwards" not in registry.names("scheduling")


@pytest.mark.usefixtures("listed")
def test_marked_classes_of_a_listed_module_are_found_by_name() -> None:
    assert registry.names("scheduling")[-2:] == ("backwards", "longest_wait_first")
    assert type(registry.scheduling("backwards")).__name__ == "Backwards"
    policy = registry.find("scheduling", "longest_wait_first")
    assert (policy.__module__, policy.__name__) == (HERE, "LongestWaitFirst")
    assert registry.kinds("backwards") == ("scheduling",)
    assert "backwards" not in registry.names("eviction")


def test_several_modules_are_listed_with_commas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other_policies.py").write_text(
        dedent("""
        from testbed.policies import EvictionPolicy, register

        @register
        class Oldest(EvictionPolicy):
            def priority(self, node, now):
                return node.created
        """)
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv(registry.MODULES_VARIABLE, f"{HERE}, other_policies")
    assert registry.names("eviction")[-1] == "oldest"
    assert "backwards" in registry.names("scheduling")


def test_an_entry_point_may_name_a_module(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("everything", HERE, registry.ENTRY_POINT_GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group: (point,))
    assert registry.names("scheduling")[-2:] == ("backwards", "longest_wait_first")


def test_a_class_found_twice_is_one_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(registry.MODULES_VARIABLE, HERE)
    point = EntryPoint("backwards", f"{HERE}:Backwards", registry.ENTRY_POINT_GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group: (point,))
    assert registry.names("scheduling").count("backwards") == 1


def test_two_classes_of_one_name_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(registry.MODULES_VARIABLE, HERE)
    point = EntryPoint("backwards", f"{HERE}:Unmarked", registry.ENTRY_POINT_GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group: (point,))
    with pytest.raises(ValueError, match=f"two policies are called 'backwards': {HERE}:Unmarked"):
        registry.names("scheduling")


@pytest.mark.parametrize("name", ["Backwards", "last-come", "", "1st", "a b"])
def test_a_name_is_lower_case(name: str) -> None:
    with pytest.raises(ValueError, match="lower-case letters, digits and _ are needed"):
        register(name)


def test_a_name_that_ships_is_taken() -> None:
    with pytest.raises(ValueError, match="'fcfs' is taken by one that ships"):
        register("fcfs")(Backwards)


def test_only_policies_can_be_registered() -> None:
    with pytest.raises(ValueError, match="is no class of scheduling, eviction or routing"):
        register("number")(int)  # type: ignore[type-var]


def test_a_listed_module_must_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(registry.MODULES_VARIABLE, "no_such_module")
    with pytest.raises(ValueError, match="no_such_module: No module named"):
        registry.names("routing")


@pytest.mark.usefixtures("listed")
def test_scalar_parameters_must_have_their_declared_types() -> None:
    policy = registry.create("scheduling", "backwards", stride=2, share=1, loud=True)
    assert policy.given == (2, 1, True)
    for wrong, kind in (({"stride": 1.5}, "int"), ({"stride": True}, "int"), ({"loud": 1}, "bool")):
        with pytest.raises(ValueError, match=f"scheduling policy backwards: .*: {kind} is needed"):
            registry.create("scheduling", "backwards", **wrong)
    with pytest.raises(ValueError, match="share='much': float is needed"):
        registry.create("scheduling", "backwards", share="much")


def test_an_unknown_name_of_any_kind() -> None:
    with pytest.raises(ValueError, match=r"unknown policy 'lmp': one of fcfs, .*round_robin"):
        registry.kinds("lmp")
