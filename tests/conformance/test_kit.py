"""The kit finds what is broken, shows it on a workload that can be run, and lets the rest pass."""

from __future__ import annotations

from typing import Any

import pytest

from testbed.conformance import (
    CHECKS,
    ConformanceError,
    check_policy,
    examine,
    recheck,
    subject_of,
)
from testbed.conformance.battery import battery, streams
from testbed.conformance.fresh_process import fails_afresh
from testbed.policies.scheduling.arrival import Fcfs
from tests.conformance.bad import BROKEN, Crashes, Declared, Hashes, InOrder, Shortest


@pytest.mark.parametrize(
    ("policy", "check", "says"), BROKEN, ids=[f"{p.__name__}-{c}" for p, c, _ in BROKEN]
)
def test_a_broken_rule_is_found_and_its_script_shows_it(
    policy: type[Any], check: str, says: str
) -> None:
    found = {f.check: f for f in examine(subject_of(policy, None, {}), checks=("survives", check))}
    finding = found[check]
    assert finding.status == "failed"
    assert says in finding.detail
    # What it prints is complete: it runs by itself, and fails.
    if check == "repeats":
        assert fails_afresh(finding.script)
        return
    with pytest.raises(Exception) as raised:
        exec(compile(finding.script, "script", "exec"), {})
    assert not isinstance(raised.value, NameError | ImportError)


def test_a_minimal_workload_is_minimal() -> None:
    (finding,) = (f for f in examine(subject_of(Crashes, None, {})) if f.check == "survives")
    # Three must wait at once, and nothing about them matters.
    assert finding.script.count("Request(id=") == 3
    assert "Request(id=0, prompt=tokens([1016]), output=tokens([" in finding.script or (
        finding.script.count("prompt=tokens([") == 3
    )
    assert "scheduler=" not in finding.script and "client=" not in finding.script


def test_after_a_crash_the_others_are_not_run() -> None:
    findings = list(examine(subject_of(Crashes, None, {})))
    assert [f.check for f in findings] == ["survives", "read_only", "the others"]
    assert findings[-1].status == "not run"


def test_a_sound_policy_passes_every_check_that_can_run() -> None:
    report = check_policy(InOrder)
    status = {finding.check: finding.status for finding in report.findings}
    assert tuple(status) == CHECKS
    assert set(status.values()) <= {"passed", "not run"}
    assert {c for c, s in status.items() if s == "not run"} <= {"parity"}


def test_declared_starvation_is_no_failure() -> None:
    (finding,) = check_policy(Declared, checks=["starvation"]).findings
    assert finding.status == "declared"


def test_the_horizon_is_the_number_of_requests_that_may_pass() -> None:
    # 160 come beside the watched one, 8 of them before it: 152 pass it.
    check_policy(Shortest, checks=["starvation"], horizon=152)
    with pytest.raises(ConformanceError, match="passed by 152 of the 161") as raised:
        check_policy(Shortest, checks=["starvation"], horizon=151)
    # The script asks what was asked.
    call = next(line for line in str(raised.value).splitlines() if "recheck(" in line)
    assert call.strip().endswith("Shortest, horizon=151)")
    stream = "long among short"
    recheck("starvation", stream, Shortest, horizon=152)
    with pytest.raises(ConformanceError):
        recheck("starvation", stream, Shortest, horizon=151)


def test_a_failure_shows_the_whole_report() -> None:
    with pytest.raises(ConformanceError) as raised:
        check_policy(Hashes, checks=["survives", "hash_seeds"])
    text = str(raised.value)
    assert "scheduling tests.conformance.bad:Hashes" in text
    assert "passed    survives" in text and "failed    hash_seeds" in text
    assert "    recheck('hash_seeds', case, Hashes)" in text


def test_what_cannot_be_imported_by_name_is_reported_as_not_run() -> None:
    class Local(InOrder):
        """Nobody else can import it."""

    (finding,) = check_policy(Local, checks=["hash_seeds"]).findings
    assert (finding.status, "cannot be imported" in finding.detail) == ("not run", True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("fcfs", "eviction"), "unknown eviction policy 'fcfs'"),
        (("nobody",), "unknown policy 'nobody': one of fcfs"),
        ((int,), "<class 'int'> is no class of scheduling, eviction or routing policies"),
    ],
)
def test_an_unknown_policy_is_a_value_error(arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_policy(*arguments)


def test_parameters_are_checked_and_passed_on() -> None:
    assert subject_of("fcfs", None, {"on_misfit": "skip"}).call == "Fcfs, on_misfit='skip'"
    with pytest.raises(ValueError, match="no parameter 'alpha'"):
        check_policy(Fcfs, alpha=1)
    with pytest.raises(ValueError, match="checks='all': some of survives"):
        check_policy(Fcfs, checks=["all"])


def test_recheck_returns_where_all_is_well() -> None:
    for case in battery()[:2]:
        recheck("repeats", case, Fcfs, on_misfit="skip")
    recheck("starvation", "cold among hot", Fcfs)


def test_the_battery_holds_what_it_promises() -> None:
    cases = battery()
    assert cases == battery()[:0] + cases and len(cases) >= 20
    assert {c.cache.page_size for c in cases} >= {1, 16}
    assert {c.scheduler.batching for c in cases} == {"mixed", "prefill_first"}
    assert {c.scheduler.reserve for c in cases} == {"full", "ratio", "peak"}
    assert {c.cache.kind for c in cases} == {"radix", "block_hash", "none"}
    assert max(len({r.client for r in c.requests}) for c in cases) == 20
    assert any(len({r.namespace for r in c.requests}) == 3 for c in cases)
    assert all(len(c.requests) <= 40 for c in cases)
    # A seed says all.
    assert [c.source() for c in battery(3)] == [c.source() for c in battery(3)]
    assert [c.source() for c in battery(3)] != [c.source() for c in cases]


def test_each_stream_watches_one_of_nine_that_come_at_once() -> None:
    for case in streams().values():
        assert len(case.requests) == 161
        arrivals = [r.arrival for r in case.requests]
        assert arrivals == sorted(arrivals) and arrivals.count(0.0) == 9
        assert case.watched == (0 if case.name.startswith("old among new") else 8)
