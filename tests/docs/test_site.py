"""The site builds without a warning or a network, and every command that its pages show exists."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser

from experiments.benchmarks.__main__ import BENCHMARKS
from experiments.figures.catalogue import FIGURES
from experiments.run import CONF, choice_store, register_options, with_foreign_policies
from testbed.conformance.battery import battery
from testbed.conformance.kit import examine, subject_of
from testbed.core.records import DECISION_COLUMNS, REQUEST_COLUMNS, STEP_COLUMNS
from testbed.metrics.summary import SUMMARY_COLUMNS

pytest.importorskip("mkdocs", reason="the extra `docs` is not installed")
pytest.importorskip("material", reason="the extra `docs` is not installed")
pytest.importorskip("mkdocstrings", reason="the extra `docs` is not installed")

from docs.generated_pages import cli_page, parsers, records_page, summary_page

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [
    *(DOCS / name for name in ("index.md", "tutorial.md", "notebooks.md")),
    *sorted((DOCS / "how-to").glob("*.md")),
    *sorted((DOCS / "explanation").glob("*.md")),
]
COMMAND = re.compile(r"^ {4}((?:.*\\\n)*.+)$|`([^`\n]+)`", re.MULTILINE)
FIRST_WORDS = ("testbed", "python", "make")


def commands() -> list[list[str]]:
    """The words of each command in the pages, environments and variables in front left off."""
    found = []
    for page in PAGES:
        text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        for block, inline in COMMAND.findall(text):
            line = re.sub(r"^(\w+=\S+ )?(\.venv(-engine)?/bin/)?", "", block or inline)
            line = line.replace("\\\n", " ")
            words = shlex.split(line) if line.split()[0] in FIRST_WORDS else []
            if len(words) > 1:
                found.append(words)
    return found


def commands_of(*words: str) -> list[list[str]]:
    return [line[len(words) :] for line in commands() if tuple(line[: len(words)]) == words]


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stderr
    return folder


def test_it_has_every_page(site: Path) -> None:
    sources = {path.relative_to(DOCS).with_suffix(".html") for path in DOCS.rglob("*.md")}
    made = {path.relative_to(site) for path in site.rglob("*.html")} - {Path("404.html")}
    generated = {
        Path(f"reference/{name}.html") for name in ("cli", "options", "records", "summary")
    }
    assert made == sources | generated


def test_nothing_is_fetched_to_read_it(site: Path) -> None:
    for page in site.rglob("*.html"):
        loaded = re.findall(
            r'<(?:script|img|link|iframe)[^>]*(?:src|href)="([^"]+)"', page.read_text()
        )
        assert not [address for address in loaded if re.match(r"(https?:)?//", address)], page


@pytest.mark.parametrize(
    ("page", "said"),
    [
        ("policies", "Proposes which waiting sequence to admit next"),
        ("workloads", "a tenant's system prompt, documents drawn by popularity"),
        ("simulate", "Serve the requests and return everything that happened"),
        ("engine", "EngineRun"),
        ("metrics", "Read one run folder, or every complete run below a folder"),
    ],
)
def test_the_reference_has_the_docstrings(site: Path, page: str, said: str) -> None:
    assert said in (site / "reference" / f"{page}.html").read_text()


def test_generated_pages_name_every_column_and_command() -> None:
    columns = [*REQUEST_COLUMNS, *STEP_COLUMNS, *DECISION_COLUMNS]
    assert all(f"| `{name}` |" in records_page() for name in columns)
    assert all(f"| `{name}` |" in summary_page() for name in SUMMARY_COLUMNS)
    for name in ("testbed advise", "testbed policy new", "testbed workload describe"):
        assert f"## {name}\n" in cli_page()


def test_the_testbed_commands_parse() -> None:
    lines = commands_of("testbed")
    assert len(lines) > 20
    by_name = dict(parsers())
    for words in lines:
        name, rest = f"testbed {words[0]}", words[1:]
        while rest and f"{name} {rest[0]}" in by_name:
            name, rest = f"{name} {rest[0]}", rest[1:]
        assert name in by_name, words
        # In running text a command may be named without its arguments.
        if rest:
            by_name[name].parse_args(rest)


@pytest.fixture
def options(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Hydra's choices, and the tutorial's policy where it can be imported."""
    module = ModuleType("my_policies")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(tutorial_policy(), "tutorial.md", "exec", dont_inherit=True), module.__dict__)
    register_options()
    # A sweep of another test would send the policy to workers, which cannot import it.
    monkeypatch.setattr(choice_store(), "named", set())
    with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        yield


@pytest.mark.usefixtures("options")
def test_the_experiments_compose() -> None:
    lines = commands_of("python", "-m", "experiments.run")
    assert len(lines) > 10
    for words in lines:
        overrides = [word for word in words if not word.startswith("-")]
        if {"experiment=mine", "scheduler=lpm,shortest_prompt"} & set(overrides):
            continue  # made on the page itself
        alternatives = [
            [f"{one.key_or_group}={value}" for value in one.sweep_string_iterator()]
            if one.is_sweep_override()
            else [one.input_line]
            for one in OverridesParser.create().parse_overrides(with_foreign_policies(overrides))
        ]
        for place in range(max(map(len, alternatives), default=0)):
            compose("config", [values[min(place, len(values) - 1)] for values in alternatives])


def test_the_figures_and_benchmarks_exist() -> None:
    figures = {words[0] for words in commands_of("python", "-m", "experiments.figures") if words}
    assert figures <= {figure.name for figure in FIGURES} and len(figures) > 8
    named = {words[0] for words in commands_of("python", "-m", "experiments.benchmarks") if words}
    assert named <= {benchmark.name for benchmark in BENCHMARKS} and len(named) > 2
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {words[0] for words in commands_of("make")} <= targets


def tutorial_policy() -> str:
    (block,) = re.findall(
        r"^```python\n(.*?)^```$", (DOCS / "tutorial.md").read_text(), re.M | re.S
    )
    return str(block)


def test_the_tutorial_s_policy_is_sound(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "tutorial_policies.py").write_text(tutorial_policy())
    monkeypatch.syspath_prepend(tmp_path)
    checks = ("survives", "read_only", "repeats")
    subject = subject_of("tutorial_policies:PatientLpm", None, {})
    findings = examine(subject, cases=battery()[:2], checks=checks)
    assert {finding.status for finding in findings} <= {"passed", "not run"}


def test_the_notebook_writes_the_same_policy() -> None:
    text = (ROOT / "notebooks" / "write_a_policy.py").read_text()
    (cell,) = re.findall(r"^# %%writefile [^\n]*\n(.*?)^# %%", text, re.MULTILINE | re.DOTALL)
    assert cell.strip() == tutorial_policy().strip()


def test_pages_say_what_notebooks_there_are() -> None:
    named = re.findall(r"^\| `(\w+)` \|", (DOCS / "notebooks.md").read_text(), re.MULTILINE)
    assert sorted(named) == sorted(path.stem for path in (ROOT / "notebooks").glob("*.py"))


def test_the_experiment_of_the_page_is_valid_yaml() -> None:
    (block,) = re.findall(r"```yaml\n(.*?)```", (DOCS / "how-to" / "sweep.md").read_text(), re.S)
    assert block.startswith("# @package _global_\n")
    assert yaml.safe_load(block)["hydra"]["sweeper"]["params"]["scheduler"] == "fcfs,lpm"
