"""`@register`, and modules that entry points or TESTBED_POLICIES name."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path
from textwrap import dedent
from typing import Literal, Optional

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
    assert "backwards" not in registry.names("scheduling")
    with pytest.raises(ValueError, match=f"two policies are called 'backwards': {HERE}:Unmarked"):
        registry.find("scheduling", "backwards")


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


def test_a_broken_listed_module_is_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(registry.MODULES_VARIABLE, f"no_such_module,{HERE}")
    assert registry.names("routing") == tuple(registry.BUILT_IN["routing"])
    assert "backwards" in registry.names("scheduling")
    assert capsys.readouterr().err == (
        "warning: TESTBED_POLICIES=no_such_module: No module named 'no_such_module'; left out\n"
    )


@pytest.mark.usefixtures("listed")
def test_scalar_parameters_must_have_their_declared_types() -> None:
    policy = registry.create("scheduling", "backwards", stride=2, share=1, loud=True)
    assert policy.given == (2, 1, True)
    for wrong, kind in (({"stride": 1.5}, "int"), ({"stride": True}, "int"), ({"loud": 1}, "bool")):
        with pytest.raises(ValueError, match=f"scheduling policy backwards: .*: {kind} is needed"):
            registry.create("scheduling", "backwards", **wrong)
    with pytest.raises(ValueError, match="share='much': float is needed"):
        registry.create("scheduling", "backwards", share="much")


class Choosy(Backwards):
    """Its parameters are choices, and may be absent."""

    def __init__(
        self,
        mode: Literal["fast", "slow"] = "fast",
        level: Literal[1, 2] | None = None,
        limit: int | None = None,
        share: Optional[float] = None,  # noqa: UP045
        table: dict[str, int] | None = None,
    ) -> None:
        self.chosen = (mode, level, limit, share, table)


def test_choices_and_what_may_be_absent() -> None:
    path = f"{HERE}:Choosy"
    accepted = {"mode": "slow", "level": 2, "limit": 3, "share": 1, "table": {"a": 1}}
    assert registry.create("scheduling", path, **accepted).chosen == tuple(accepted.values())
    absent = dict.fromkeys(("level", "limit", "share", "table"))
    assert registry.create("scheduling", path, **absent).chosen == ("fast", None, None, None, None)
    for wrong, needed in (
        ({"mode": "foo"}, "mode='foo': fast or slow"),
        ({"mode": None}, "mode=None: fast or slow"),
        ({"level": 3}, "level=3: 1, 2 or null"),
        ({"level": True}, "level=True: 1, 2 or null"),
        ({"limit": "many"}, "limit='many': int or null"),
        ({"limit": 1.5}, "limit=1.5: int or null"),
        ({"share": "None"}, "share='None': float or null"),
    ):
        with pytest.raises(ValueError, match=f"{needed} is needed"):
            registry.create("scheduling", path, **wrong)


def test_a_folder_that_hides_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # What `testbed policy new` writes, seen from the folder above.
    (tmp_path / "hidden_policy" / "src").mkdir(parents=True)
    monkeypatch.syspath_prepend(str(tmp_path))
    message = "a folder of this name hides it; run inside hidden_policy/src or pip install it"
    with pytest.raises(ValueError, match=f"hidden_policy:HiddenPolicy: {message}"):
        registry.find("scheduling", "hidden_policy:HiddenPolicy")
    monkeypatch.setenv(registry.MODULES_VARIABLE, "hidden_policy")
    assert message in registry.broken()["hidden_policy"]


def test_an_unknown_name_of_any_kind() -> None:
    with pytest.raises(ValueError, match=r"unknown policy 'lmp': one of fcfs, .*round_robin"):
        registry.kinds("lmp")
