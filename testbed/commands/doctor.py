"""`testbed doctor`: what is installed, what is missing for which feature, what the GPU can do."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

NAME = "radix-testbed"
FEATURES = {
    "engine": "real models: validate, calibrate, model",
    "notebooks": "running the notebooks",
    "sweeps": "sweeps through joblib and Slurm",
    "ray": "sweeps through Ray",
    "tokenizer": "prompts cut into tokens by a model's own tokenizer.json",
    "browser": "the test of report pages in Chromium",
    "docs": "building the documentation site",
    "dev": "tests, types and style",
}
"""What an extra is for; one that is not named here is shown by its name."""
DATA = {
    "mooncake/conversation_trace.jsonl": "workload=mooncake, and the demo",
    "azure": "Azure's LLM inference traces",
    "arena": "the Chatbot Arena trace of the VTC artifact",
    "sharegpt": "ShareGPT conversations",
}
"""Files and folders of the data folder, with what they are for."""
SIMULATOR = "import matplotlib.figure, testbed.sim.world, testbed.metrics.loading"
GPU = """
import json, torch
found = {"torch": torch.__version__, "cuda": torch.version.cuda, "devices": [], "error": None}
try:
    for i in range(torch.cuda.device_count()):
        card = torch.cuda.get_device_properties(i)
        assert torch.ones(8, device=f"cuda:{i}").sum().item() == 8
        found["devices"].append({
            "name": card.name,
            "memory_bytes": card.total_memory,
            "compute_capability": f"{card.major}.{card.minor}",
        })
except Exception as error:
    found["error"] = str(error).splitlines()[0]
print(json.dumps(found))
"""
"""Asked of an interpreter of its own, so that this one needs no torch."""
PATIENCE_S = 180


class Package(NamedTuple):
    """version: what is installed; None if it is missing. supported: whether it is in range."""

    name: str
    wanted: str
    version: str | None
    supported: bool


def add(commands: Any) -> None:
    """Add the command's parser."""
    parser = commands.add_parser(
        "doctor",
        help="print what is installed, what is missing, and whether a GPU is usable",
        description="Print what is installed, what is missing for which feature, whether a GPU is "
        "usable and where the data lies. The exit status is 1 only if the simulator cannot run.",
    )
    parser.add_argument("--json", action="store_true", help="print it as JSON")
    parser.set_defaults(command=_doctor)


def _doctor(options: argparse.Namespace) -> int:
    if sys.stderr.isatty():
        print("asking the simulator, and torch if it is there ...", file=sys.stderr)
    try:
        found = examine()
    except ModuleNotFoundError as error:
        print(f"broken: {error.name} is missing; pip install {NAME}", file=sys.stderr)
        return 1
    print(json.dumps(found, indent=1) if options.json else as_text(found))
    return 0 if found["working"] else 1


def examine() -> dict[str, Any]:
    """All that is printed, as plain values; takes seconds where torch is installed."""
    project = _project()
    core = _packages(project["dependencies"])
    extras = {
        name: _packages(wanted) for name, wanted in sorted(project["optional-dependencies"].items())
    }
    simulator = _problem(SIMULATOR)
    return {
        "version": project["version"],
        "python": {
            "version": platform.python_version(),
            "wanted": project["requires-python"],
            "supported": _is_in(platform.python_version(), project["requires-python"]),
        },
        "platform": platform.platform(),
        "working": simulator is None and all(package.version for package in core),
        "problem": simulator,
        "core": [package._asdict() for package in core],
        "extras": {
            name: {
                "feature": FEATURES.get(name, ""),
                "complete": all(package.version for package in packages),
                "packages": [package._asdict() for package in packages],
            }
            for name, packages in extras.items()
        },
        "gpu": _gpu(),
        "data": _data(),
    }


def as_text(found: dict[str, Any]) -> str:
    """For a terminal: a block each for the core, the extras, the GPU and the data."""
    python = found["python"]
    core = [Package(**package) for package in found["core"]]
    lines = [
        f"{NAME} {found['version']}, Python {python['version']}"
        + ("" if python["supported"] else f" (unsupported: {python['wanted']} is needed)"),
        found["platform"],
        "",
        f"simulator  {'works' if found['working'] else 'BROKEN'}",
    ]
    lines += [f"           {_named(package)}" for package in core if not _is_fine(package)]
    lines += [f"           {found['problem']}"] * (found["problem"] is not None)
    lines += ["", "extras"]
    width = max(map(len, found["extras"]), default=0)
    for name, extra in found["extras"].items():
        packages = [Package(**package) for package in extra["packages"]]
        state = "installed" if extra["complete"] else f"pip install '{NAME}[{name}]'"
        lines.append(f"  {name:<{width}}  {extra['feature'] or name}: {state}")
        lines += [f"  {'':<{width}}    {_named(p)}" for p in packages if not _is_fine(p)]
    lines += ["", f"gpu        {_gpu_text(found['gpu'])}"]
    data = found["data"]
    lines += ["", f"data       {data['folder'] or data['advice']}"]
    lines += [
        f"  {'found  ' if is_there else 'missing'}  {path}: {DATA[path]}"
        for path, is_there in data["known"].items()
    ]
    return "\n".join(lines)


def _project() -> dict[str, Any]:
    """The [project] table: of the checkout, whose installed metadata may be old, else of that."""
    checkout = Path(__file__).resolve().parents[2] / "pyproject.toml"
    if checkout.is_file():
        import tomllib

        table: dict[str, Any] = tomllib.loads(checkout.read_text(encoding="utf-8"))["project"]
        return table
    from packaging.requirements import Requirement

    described = metadata.metadata(NAME)
    extras = described.get_all("Provides-Extra") or []
    required = [Requirement(text) for text in metadata.requires(NAME) or []]
    wanted: dict[str, list[str]] = {name: [] for name in ("", *extras)}
    for requirement in required:
        for name in wanted:
            others = [""] if name else []
            marker = requirement.marker
            here = marker is None or marker.evaluate({"extra": name})
            already = any(marker is None or marker.evaluate({"extra": other}) for other in others)
            if here and not already:
                wanted[name].append(f"{requirement.name}{requirement.specifier}")
    return {
        "version": described["Version"],
        "requires-python": described["Requires-Python"],
        "dependencies": wanted.pop(""),
        "optional-dependencies": wanted,
    }


def _packages(requirements: list[str]) -> list[Package]:
    from packaging.requirements import Requirement

    packages = []
    for text in requirements:
        wanted = Requirement(text)
        if wanted.marker is not None and not wanted.marker.evaluate():
            continue
        try:
            version = metadata.version(wanted.name)
        except metadata.PackageNotFoundError:
            version = None
        supported = version is not None and _is_in(version, str(wanted.specifier))
        packages.append(Package(wanted.name, str(wanted.specifier), version, supported))
    return packages


def _is_in(version: str, wanted: str) -> bool:
    from packaging.specifiers import SpecifierSet

    return SpecifierSet(wanted).contains(version, prereleases=True)


def _is_fine(package: Package) -> bool:
    return package.version is not None and package.supported


def _named(package: Package) -> str:
    if package.version is None:
        return f"missing: {package.name}{package.wanted}"
    return f"unsupported: {package.name} {package.version}; {package.wanted} is needed"


def _problem(program: str) -> str | None:
    """What goes wrong when another interpreter runs it; None if nothing does."""
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_S
    )
    return None if run.returncode == 0 else (run.stderr.strip().splitlines() or ["it ended"])[-1]


def _gpu() -> dict[str, Any]:
    """What torch says of the GPUs; `driver` is whether NVIDIA's tool is there."""
    found: dict[str, Any] = {"usable": False, "driver": shutil.which("nvidia-smi") is not None}
    try:
        metadata.version("torch")
    except metadata.PackageNotFoundError:
        return {**found, "torch": None, "devices": [], "error": None}
    try:
        run = subprocess.run(
            [sys.executable, "-c", GPU], capture_output=True, text=True, timeout=PATIENCE_S
        )
        found |= json.loads(run.stdout)
    except (subprocess.TimeoutExpired, ValueError) as error:
        found |= {"torch": metadata.version("torch"), "devices": [], "error": f"torch: {error}"}
    found["usable"] = bool(found["devices"]) and found["error"] is None
    return found


def _gpu_text(gpu: dict[str, Any]) -> str:
    if gpu["usable"]:
        cards = [
            f"{card['name']}, {card['memory_bytes'] / 2**30:.0f} GiB, compute capability "
            f"{card['compute_capability']}"
            for card in gpu["devices"]
        ]
        return f"usable: {'; '.join(cards)} (torch {gpu['torch']})"
    if gpu["error"]:
        return f"not usable: {gpu['error']}"
    seen = "; a driver is there" if gpu["driver"] else ""
    if gpu["torch"] is None:
        return f"not asked: torch is not installed{seen}; the simulator needs none"
    return f"none that torch {gpu['torch']} finds{seen}; the engine runs on the CPU"


def _data() -> dict[str, Any]:
    from testbed.workloads.data_folder import VARIABLE, data_folder

    advice = f"no data folder: set {VARIABLE} to one, for workloads that read traces"
    try:
        folder = data_folder()
    except ValueError as error:
        folder, advice = None, str(error)
    return {
        "folder": None if folder is None else os.path.abspath(folder),
        "advice": advice if folder is None else None,
        "known": {path: folder is not None and (folder / path).exists() for path in DATA},
    }
