"""Every policy that ships keeps the rules."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from typing import get_args

import pytest

from testbed.conformance import CHECKS, examine, subject_of
from testbed.conformance.battery import battery, spread
from testbed.conformance.fresh_process import HashSeeds
from testbed.conformance.growth import growth
from testbed.policies import registry

SHIPPED = [(kind, name) for kind in get_args(registry.Kind) for name in registry.BUILT_IN[kind]]
IDS = [f"{kind}-{name}" for kind, name in SHIPPED]
QUICK = ("a tiny pool", "delays and refusals", "hints", "conversations")
"""Cases that between them preempt, delay, refuse and carry every hint."""


@pytest.fixture(scope="module")
def seeds() -> Iterator[HashSeeds]:
    with HashSeeds() as processes:
        yield processes


@pytest.mark.parametrize(("kind", "name"), SHIPPED, ids=IDS)
def test_a_few_cases(kind: registry.Kind, name: str) -> None:
    cases = [replace(c, requests=c.requests[:16]) for c in battery() if c.name in QUICK]
    assert len(cases) == len(QUICK)
    if kind == "routing":
        cases = list(spread(cases))
    subject = subject_of(name, kind, {})
    checks = ("survives", "read_only", "quiet_steps", "within_bounds")
    for finding in examine(subject, checks=checks, cases=cases):
        assert finding.status == "passed", str(finding)
    assert growth(subject) is None


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name"), SHIPPED, ids=IDS)
def test_the_whole_kit(kind: registry.Kind, name: str, seeds: HashSeeds) -> None:
    found = list(examine(subject_of(name, kind, {}), seeds=seeds))
    assert [f for f in found if f.status == "failed"] == [], "\n".join(map(str, found))
    assert {f.check for f in found} <= set(CHECKS)
    runs_on_the_engine = kind != "routing" and not getattr(
        registry.find(kind, name), "oracle", False
    )
    not_run = set() if runs_on_the_engine and find_spec("torch") else {"parity"}
    assert {f.check for f in found if f.status == "not run"} == not_run
