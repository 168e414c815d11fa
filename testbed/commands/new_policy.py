"""The package that `testbed policy new` writes: policy, test, config, entry point, README."""

from __future__ import annotations

import builtins
import errno
import keyword
import os
import re
import shlex
import shutil
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from tempfile import mkdtemp
from types import MappingProxyType

from testbed import policies
from testbed.policies import registry

POLICIES: Mapping[str, str] = MappingProxyType(
    {
        "scheduling": '''"""A scheduling policy: which waiting request is admitted next."""

from __future__ import annotations

from testbed.policies import Proposals, SchedulerView, SchedulingPolicy, SequenceView


class CLASS(SchedulingPolicy):
    """Fewest uncached prompt tokens first; with `aging`, waiting makes up for length.

    A request ranks by its uncached tokens less aging * seconds waited. Ties by arrival.
    """

    def __init__(self, aging: float = 100.0) -> None:
        if aging < 0:
            raise ValueError(f"aging={aging}: at least 0 tokens a second are needed")
        self._aging = aging
        # Without aging a long request may wait for ever; the conformance kit wants to know.
        self.may_starve = aging == 0

    def candidates(self, view: SchedulerView) -> Proposals:
        """Best first, up to the first that does not fit; O(n log n) for n waiting."""

        def rank(sequence: SequenceView) -> tuple[float, int]:
            uncached = sequence.num_tokens - sequence.num_matched_tokens
            return uncached - self._aging * (view.now - sequence.arrival), sequence.index

        for sequence in sorted(view.waiting, key=rank):
            if not (yield sequence):
                return
''',
        "eviction": '''"""An eviction policy: which unlocked leaf of the radix tree leaves first."""

from __future__ import annotations

from testbed.policies import EvictionPolicy, NodeView


class CLASS(EvictionPolicy):
    """Least recently used first, but leaves that served `keep` requests or more go last."""

    def __init__(self, keep: int = 3) -> None:
        if keep < 1:
            raise ValueError(f"keep={keep}: at least 1 request is needed")
        self._keep = keep

    def priority(self, node: NodeView, now: int) -> tuple[bool, int]:
        """(whether it served many, step of the last use); the smallest goes first."""
        return node.hits >= self._keep, node.last_access
''',
        "routing": '''"""A routing policy: which replica serves a request."""

from __future__ import annotations

from testbed.policies import ReplicaView, RequestView, RoutingPolicy


class CLASS(RoutingPolicy):
    """The replica where cached tokens outweigh the queue most.

    A request in a replica's queue or batch counts as `penalty` tokens. Ties by index.
    """

    def __init__(self, penalty: int = 64) -> None:
        if penalty < 0:
            raise ValueError(f"penalty={penalty}: at least 0 tokens are needed")
        self._penalty = penalty

    def choose(self, request: RequestView, replicas: tuple[ReplicaView, ...], now: float) -> int:
        """The index of the replica; a peek is O(prompt)."""

        def rank(replica: ReplicaView) -> tuple[int, int]:
            load = replica.num_waiting + replica.num_running
            return self._penalty * load - replica.peek(request), replica.index

        return min(replicas, key=rank).index
''',
    }
)
PARAMETER: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "scheduling": ("aging", "0.0,100.0"),
        "eviction": ("keep", "2,3,8"),
        "routing": ("penalty", "0,64,1024"),
    }
)
"""The template's parameter, and values to sweep."""
BASELINE: Mapping[str, str] = MappingProxyType(
    {"scheduling": "fcfs", "eviction": "lru", "routing": "round_robin"}
)
GROUP: Mapping[str, str] = MappingProxyType(
    {"scheduling": "scheduler", "eviction": "eviction", "routing": "routing"}
)

TEST = '''"""Run with: python -m pytest"""

from __future__ import annotations

import pytest

from testbed.conformance import check_policy

from NAME import CLASS


def test_the_conformance_kit_finds_nothing() -> None:
    check_policy(CLASS)


def test_an_impossible_parameter_is_refused() -> None:
    with pytest.raises(ValueError, match="PARAMETER=-1"):
        CLASS(PARAMETER=-1)
'''
CONFIG = """# @package _global_
# CLASS beside BASELINE, for every value of its parameter that is listed:
#
#     python -m experiments.run --config-dir FOLDER/conf -m experiment=NAME

defaults:
  - override /GROUP: NAME

hydra:
  sweeper:
    params:
      GROUP.PARAMETER: VALUES
"""
PYPROJECT = """[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "testbed-policy-DASHED"
version = "0.1.0"
description = "A policy for radix-testbed: KIND"
requires-python = ">=3.11"
dependencies = ["radix-testbed"]

[project.entry-points."testbed.policies"]
NAME = "NAME:CLASS"

[tool.setuptools]
package-dir = { "" = "src" }
py-modules = ["NAME"]

[tool.pytest.ini_options]
pythonpath = ["src"]
"""
README = """# NAME

The class `CLASS` in `src/NAME.py` is a policy (KIND) for [radix-testbed]. Write yours in its place.

With the testbed's environment active (in a checkout, `source .venv/bin/activate`):

    pip install --editable . --no-deps         # makes NAME an option by name
    testbed policy check NAME                  # what the conformance kit finds
    python -m pytest                           # the same as a test; pytest must be there

From a checkout of the testbed:

    python -m experiments.run -m GROUP=BASELINE,NAME
    testbed compare results
    python -m experiments.run -m GROUP=NAME GROUP.PARAMETER=VALUES
    python -m experiments.run --config-dir FOLDER/conf -m experiment=NAME

Without installing it, `GROUP=NAME.CLASS` does the same wherever `NAME` can be imported.

[radix-testbed]: how to write each kind of policy is in its docs/policies.md
"""


def write_package(name: str, kind: registry.Kind, parent: Path) -> Path:
    """Write the folder `name` below `parent`, whole or not at all; returns it.

    ValueError for a name that is none, is taken, or whose folder is there already.
    """
    folder = parent / name
    _check_name(name, kind)
    if folder.exists():
        raise ValueError(f"{folder} exists; another name, or another place, is needed")
    if not parent.is_dir():
        raise ValueError(f"into={parent}: no such folder")
    partial = Path(mkdtemp(prefix=f".{name}.", suffix=".partial", dir=parent))
    try:
        for path, text in _files(name, kind, folder).items():
            (partial / path).parent.mkdir(parents=True, exist_ok=True)
            (partial / path).write_text(text, encoding="utf-8")
        # mkdtemp leaves it to its owner alone.
        partial.chmod(0o777 & ~_umask())
        partial.rename(folder)
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            raise ValueError(f"{folder} exists; another name is needed") from error
        raise
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return folder


def _check_name(name: str, kind: registry.Kind) -> None:
    if not registry.NAME.fullmatch(name) or keyword.iskeyword(name):
        raise ValueError(
            f"name={name!r}: lower-case letters, digits and _, a letter first, are needed"
        )
    called = _class_name(name)
    if keyword.iskeyword(called) or hasattr(builtins, called) or called in policies.__all__:
        raise ValueError(f"name={name!r}: its class's name, {called}, is taken; another is needed")
    if name in registry.names(kind):
        raise ValueError(f"name={name!r}: there is a {kind} policy of this name; another is needed")
    if find_spec(name) is not None:
        raise ValueError(f"name={name!r}: there is a module of this name; another is needed")


def _class_name(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


def _files(name: str, kind: registry.Kind, folder: Path) -> Mapping[str, str]:
    parameter, values = PARAMETER[kind]
    words = {
        "CLASS": _class_name(name),
        "PARAMETER": parameter,
        "VALUES": values,
        "BASELINE": BASELINE[kind],
        "GROUP": GROUP[kind],
        "KIND": kind,
        "DASHED": name.replace("_", "-"),
        "FOLDER": shlex.quote(str(folder.resolve())),
        "NAME": name,
    }

    def filled(text: str) -> str:
        # In one pass: a folder may have NAME in its own name.
        return re.sub("|".join(words), lambda word: words[word[0]], text)

    return {
        # In a folder of its own, so that NAME is never mistaken for the folder around it.
        f"src/{name}.py": filled(POLICIES[kind]),
        f"test_{name}.py": filled(TEST),
        f"conf/experiment/{name}.yaml": filled(CONFIG),
        "pyproject.toml": filled(PYPROJECT),
        "README.md": filled(README),
    }


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
