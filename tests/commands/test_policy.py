"""`testbed policy`: list, new and check."""

from __future__ import annotations

import importlib
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from testbed.cli import main
from testbed.commands import new_policy
from testbed.commands.policy import KINDS, parameters, purpose, source
from testbed.policies import registry
from testbed.policies.eviction.recency import Lru

ROOT = Path(__file__).resolve().parents[2]


class Demanding(Lru):
    """Needs a parameter, and accepts none."""

    def __init__(self, stride: int) -> None:
        if stride:
            raise KeyError(1) if stride == 1 else SystemExit(stride)
        raise ValueError("stride=0\nis too small")


@pytest.mark.parametrize("columns", [60, 80, 130])
def test_list_fits_the_terminal(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main(["policy", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = [
        tuple(line.replace("†", "").split()[:2]) for line in lines[:-1] if not line.startswith(" ")
    ]
    assert rows == [(kind, name) for kind in KINDS for name in registry.names(kind)]
    assert max(map(len, lines)) <= columns
    words = " ".join(" ".join(lines).split())
    assert all(
        purpose(registry.find(kind, name)) in words  # type: ignore[arg-type]
        for kind, name in rows
    )


def test_list_marks_oracles_and_names_sources(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policy", "list", "--kind", "eviction"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(line.startswith(("eviction ", " " * 12)) for line in lines[:-1])
    assert lines[-1] == "† oracle: it is told what no real system knows"
    assert any(line.split() == ["eviction", "belady†", "Belady", "1966"] for line in lines)


def test_the_purpose_is_the_first_sentence() -> None:
    class Listing:
        """Nobody's rule, v0.5 of it (et al. too): the least of

        a, b.
        """

    assert purpose(Lru) == "Least recently used leaf first."
    assert purpose(Listing) == "Nobody's rule, v0.5 of it (et al. too)"


@pytest.mark.parametrize(
    ("kind", "name", "cited"),
    [
        ("scheduling", "dlpm", "arXiv 2501.14312"),
        ("scheduling", "sjf", "inference-sim"),
        ("scheduling", "srpt", "Schrage 1968"),
        # A variant of srpt by its docstring, which is all that is said of its source.
        ("scheduling", "srpt_oracle", "Schrage 1968"),
        ("scheduling", "locality_fair", "-"),
        ("eviction", "slru", "SGLang, Karedla et al. 1994"),
        ("eviction", "gdsf", "libCacheSim, Cherkasova 1998"),
        ("routing", "power_of_two", "IEEE TPDS, SGLang"),
        ("routing", "precise_prefix", "llm-d"),
        ("routing", "round_robin", "-"),
    ],
)
def test_sources_are_what_the_docstrings_cite(kind: registry.Kind, name: str, cited: str) -> None:
    assert source(registry.find(kind, name)) == cited


def test_a_class_of_another_package_is_listed_under_it() -> None:
    class Foreign:
        """No source."""

    Foreign.__module__ = "their_package.policies"
    assert source(Foreign) == "their_package"


@pytest.mark.parametrize("kind", KINDS)
def test_new_writes_a_package(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = f"fresh_{kind}"
    assert main(["policy", "new", name, "--kind", kind, "--into", str(tmp_path)]) == 0
    folder = tmp_path / name
    assert str(folder) in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == [name]
    written = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}
    config = f"conf/experiment/{name}.yaml"
    assert written == {f"src/{name}.py", f"test_{name}.py", config, "pyproject.toml", "README.md"}
    project = tomllib.loads((folder / "pyproject.toml").read_text())
    words = name.title().replace("_", "")
    assert project["project"]["entry-points"]["testbed.policies"] == {name: f"{name}:{words}"}
    defaults = yaml.safe_load((folder / config).read_text())["defaults"]
    assert list(defaults[0].values()) == [name]
    for path in folder.rglob("*"):
        if path.is_file():
            assert not {"CLASS", "NAME", "PARAMETER", "GROUP"} & set(path.read_text().split())


@pytest.mark.parametrize(
    "kind", ["scheduling", *(pytest.param(k, marks=pytest.mark.slow) for k in KINDS[1:])]
)
def test_a_new_package_s_own_test_passes(kind: registry.Kind, tmp_path: Path) -> None:
    folder = new_policy.write_package("fresh_policy", kind, tmp_path)
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "PATH": "", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "2 passed" in run.stdout


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("My-Policy", "name='My-Policy': lower-case letters, digits and _"),
        ("class", "name='class': lower-case letters"),
        ("../up", "name='../up': lower-case letters"),
        ("fcfs", "name='fcfs': there is a scheduling policy of this name"),
        ("none", "name='none': its class's name, None, is taken"),
        ("true", "name='true': its class's name, True, is taken"),
        ("value_error", "name='value_error': its class's name, ValueError, is taken"),
        ("node_view", "name='node_view': its class's name, NodeView, is taken"),
        ("scheduling_policy", "its class's name, SchedulingPolicy, is taken"),
        ("json", "name='json': there is a module of this name"),
    ],
)
def test_new_refuses_a_name_that_is_none(
    name: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["policy", "new", name, "--into", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_new_fills_in_a_folder_s_own_words_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parent = tmp_path / "my NAME of CLASS"
    parent.mkdir()
    assert main(["policy", "new", "fresh_policy", "--into", str(parent)]) == 0
    assert f"cd '{parent}/fresh_policy' && " in capsys.readouterr().out
    readme = (parent / "fresh_policy" / "README.md").read_text()
    assert f"--config-dir '{parent.resolve()}/fresh_policy'/conf -m" in readme


def test_new_never_overwrites(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine_already").mkdir()
    assert main(["policy", "new", "mine_already", "--into", str(tmp_path)]) == 2
    assert "mine_already exists" in capsys.readouterr().err
    assert list((tmp_path / "mine_already").iterdir()) == []
    assert main(["policy", "new", "another_one", "--into", str(tmp_path / "nowhere")]) == 2
    assert "nowhere: no such folder" in capsys.readouterr().err


def test_new_writes_all_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Path] = []
    write_text = Path.write_text

    def failing(self: Path, text: str, encoding: str | None = None) -> int:
        written.append(self)
        if len(written) == 3:
            raise OSError("no space left on device")
        return write_text(self, text, encoding)

    monkeypatch.setattr(Path, "write_text", failing)
    with pytest.raises(OSError, match="no space"):
        new_policy.write_package("half_written", "routing", tmp_path)
    assert len(written) == 3 and list(tmp_path.iterdir()) == []


def test_check_prints_a_line_for_each_check(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policy", "check", "lpm", "--param", "on_misfit=skip"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "scheduling testbed.policies.scheduling.cache_aware:Lpm"
    assert lines[1] == "passed    survives"
    assert any(line.startswith("declared  starvation") for line in lines)


def test_check_of_a_broken_policy_ends_with_status_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken_router.py").write_text(
        "from testbed.policies import RoutingPolicy\n\n\n"
        "class Broken(RoutingPolicy):\n"
        "    def choose(self, request, replicas, now):\n"
        "        return len(replicas)\n"
    )
    # The console script does not see the working folder by itself.
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    importlib.invalidate_caches()
    assert main(["policy", "check", "broken_router:Broken"]) == 1
    shown = capsys.readouterr().out
    assert "failed    survives: a single request: PolicyError: Broken chose replica 1" in shown
    assert "    from broken_router import Broken" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nobody"], "unknown policy 'nobody': one of fcfs"),
        (["no_module:Policy"], "no_module:Policy: No module named 'no_module'"),
        ([":Policy"], "':Policy': package.module:Class is needed"),
        ([f"{__name__}:Demanding"], "Demanding: stride: a value is needed"),
        ([f"{__name__}.Demanding", "--param", "stride=0"], "Demanding: stride=0 is too small"),
        ([f"{__name__}:Demanding", "--param", "stride=1"], "Demanding: KeyError: 1"),
        ([f"{__name__}:Demanding", "--param", "stride=2"], "Demanding: SystemExit: 2"),
        (["lpm", "--param", "speed=3"], "Lpm: no parameter 'speed'; it takes on_misfit"),
        (["lpm", "--param", "speed"], "param='speed': NAME=VALUE is needed"),
        (["lpm", "--param", "dedupe_check=x"], "dedupe_check='x': int is needed"),
        (["vtc", "--param", "rule=foo"], "Vtc: rule='foo': paper or artifact is needed"),
        (["lpm", "--kind", "routing"], "unknown routing policy 'lpm'"),
        (["priority"], "'priority' is a policy of several kinds: scheduling, eviction"),
        (["fcfs", "--horizon", "-1"], "horizon=-1: at least 0 is needed"),
    ],
)
def test_a_mistake_is_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["policy", "check", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_parameters_are_json_or_text() -> None:
    given = ["a=1", "b=0.5", "c=true", "d=skip", 'e="1"', "f=x=y", "g=null"]
    assert parameters(given) == {
        **{"a": 1, "b": 0.5, "c": True, "d": "skip", "e": "1", "f": "x=y", "g": None}
    }
