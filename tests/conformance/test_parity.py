"""Parity with the engine: looked at where torch is installed, and reported as not run elsewhere."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec

import pytest

from testbed.conformance import check_policy, examine, subject_of
from testbed.conformance.case import Case, tokens
from testbed.conformance.parity import parity_case, why_not
from testbed.conformance.serving import decisions, serve
from testbed.conformance.subject import Subject
from testbed.policies import registry
from tests.conformance.bad import InOrder, Remembers

HAS_TORCH = find_spec("torch") is not None and find_spec("transformers") is not None


def subject(kind: registry.Kind, name: str) -> Subject:
    return Subject(kind, registry.find(kind, name), {})


def test_the_case_presses_on_memory() -> None:
    # Without a model nobody knows the outputs: the limits stand in for them.
    case = parity_case()
    kinds = {row[2] for row in decisions(serve(subject("scheduling", "fcfs"), scripted(case)))}
    assert {"admit", "batch", "evict", "preempt", "finish"} <= kinds


def scripted(case: Case) -> Case:
    requests = (replace(r, output=tokens([7] * r.max_new_tokens)) for r in case.requests)
    return replace(case, requests=tuple(requests))


def test_what_cannot_run_is_never_passed() -> None:
    assert "has no router" in (why_not(subject("routing", "random")) or "")
    assert "oracle" in (why_not(subject("eviction", "belady")) or "")
    (finding,) = check_policy("belady", checks=["parity"]).findings
    assert finding.status == "not run"


@pytest.mark.skipif(HAS_TORCH, reason="torch is installed")
def test_without_torch_it_says_so() -> None:
    (finding,) = check_policy(InOrder, checks=["parity"]).findings
    assert (finding.status, "not installed" in finding.detail) == ("not run", True)


@pytest.mark.skipif(not HAS_TORCH, reason="torch or transformers not installed")
def test_a_policy_that_remembers_another_run_has_no_parity() -> None:
    (finding,) = check_policy(InOrder, checks=["parity"]).findings
    assert finding.status == "passed"
    (finding,) = examine(subject_of(Remembers, None, {}), checks=["parity"])
    assert finding.status == "failed" and finding.detail.startswith("on the engine: ")
    assert "recheck('parity', case, Remembers)" in finding.script
