"""The conformance kit: every check of a policy, and a minimal workload for each that fails."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from testbed.conformance.battery import battery, spread, streams
from testbed.conformance.case import Case
from testbed.conformance.checks import ON_EVERY_CASE, Bench, Check, starvation
from testbed.conformance.fresh_process import HashSeeds, described, fails_afresh, importable
from testbed.conformance.growth import growth
from testbed.conformance.parity import Engine, parity_case, why_not
from testbed.conformance.shrinking import script, shrink
from testbed.conformance.subject import Subject
from testbed.policies import registry
from testbed.policies.parameters import check_parameters

HORIZON = 100
"""Later requests that may pass one before it counts as starved, of the streams' 160."""
CHECKS = (*ON_EVERY_CASE, "starvation", "hash_seeds", "growth", "parity")
UNLIKE = "the decisions depend on PYTHONHASHSEED: on the order of a set, or on hash()"

Status = Literal["passed", "failed", "declared", "not run"]


@dataclass(frozen=True)
class Finding:
    """What one check found. detail: what is wrong, or why it did not run. script: Python that
    shows the failure on a minimal workload; empty unless it failed."""

    check: str
    status: Status
    detail: str = ""
    script: str = ""

    def __str__(self) -> str:
        line = f"{self.status:<9} {self.check}" + (f": {self.detail}" if self.detail else "")
        indented = "".join(f"\n    {line}".rstrip(" ") for line in self.script.splitlines())
        return f"{line}\n{indented}\n" if self.script else line


@dataclass(frozen=True)
class Report:
    """Everything that the kit found about one policy."""

    policy: str
    findings: tuple[Finding, ...]

    @property
    def failures(self) -> tuple[Finding, ...]:
        """The findings of the checks that failed."""
        return tuple(finding for finding in self.findings if finding.status == "failed")

    def __str__(self) -> str:
        return "\n".join([self.policy, *map(str, self.findings)])


class ConformanceError(AssertionError):
    """A policy broke a rule; the message shows a minimal workload."""


def check_policy(
    policy: type[Any] | str,
    kind: registry.Kind | None = None,
    *,
    horizon: int = HORIZON,
    checks: Collection[str] = CHECKS,
    **parameters: Any,
) -> Report:
    """Raise ConformanceError unless the policy keeps every rule; for tests.

    policy: a class, `module:Class`, or a registered name; kind: where the name alone leaves it
    open. horizon: later requests that may pass one before it counts as starved. checks: of CHECKS.
    parameters: of the policy. ValueError for what is unknown.
    """
    subject = subject_of(policy, kind, parameters)
    report = Report(
        f"{subject.kind} {subject.name}", tuple(examine(subject, horizon=horizon, checks=checks))
    )
    if report.failures:
        raise ConformanceError(f"\n{report}")
    return report


def recheck(
    check: str,
    case: Case | str,
    policy: type[Any],
    /,
    *,
    horizon: int = HORIZON,
    **parameters: Any,
) -> None:
    """One check once more: what the kit's scripts call.

    case: the name of a stream for `starvation`; any text for `growth`. horizon: see check_policy,
    for `starvation`. Lets the policy's own error
    through, raises ConformanceError for a broken rule, and returns if all is well.
    """
    subject = subject_of(policy, None, parameters)
    problem: str | None
    if check == "growth":
        problem = _growth(subject)
    elif check == "hash_seeds":
        assert isinstance(case, Case)
        with HashSeeds() as seeds:
            problem = UNLIKE if seeds.differ(subject, case) else None
    else:
        run: Check
        if check == "parity":
            run = Engine().check
        else:
            run = starvation(horizon) if check == "starvation" else ON_EVERY_CASE[check][1]
        try:
            problem = run(Bench(subject), streams()[case] if isinstance(case, str) else case)
        except SystemExit as error:
            # A script of the kit must not end as if all were well.
            raise ConformanceError(described(error)) from error
    if problem is not None:
        raise ConformanceError(problem)


def subject_of(
    policy: type[Any] | str, kind: registry.Kind | None, parameters: dict[str, Any]
) -> Subject:
    """The policy as the kit examines it.

    ValueError for an unknown name or parameter, and for parameters it cannot be made with.
    """
    if isinstance(policy, str):
        found = (kind,) if kind else registry.kinds(policy)
        if len(found) > 1:
            raise ValueError(f"{policy!r} is a policy of several kinds: {', '.join(found)}")
        kind, policy = found[0], registry.find(found[0], policy)
    else:
        kind = registry.kind_of(policy)
    check_parameters(policy, parameters, policy.__name__)
    subject = Subject(kind, policy, parameters)
    try:
        subject.make()
    except (Exception, SystemExit) as error:
        # Of a ValueError the message says it all.
        text = " ".join(str(error).split()) if type(error) is ValueError else described(error)
        raise ValueError(f"{policy.__name__}: {text}") from error
    return subject


def examine(
    subject: Subject,
    *,
    horizon: int = HORIZON,
    checks: Collection[str] = CHECKS,
    cases: Iterable[Case] | None = None,
    seeds: HashSeeds | None = None,
) -> Iterator[Finding]:
    """One finding a check, as they are made.

    cases: the battery by default. seeds: processes to use for hash_seeds; by default new ones.
    """
    unknown = sorted(set(checks) - set(CHECKS))
    if unknown:
        raise ValueError(f"checks={unknown[0]!r}: some of {', '.join(CHECKS)} are needed")
    bench = Bench(subject)
    if cases is None:
        cases = spread(battery()) if subject.kind == "routing" else battery()
    cases = tuple(cases)
    survived = True
    for name, (kinds, check) in ON_EVERY_CASE.items():
        if name in checks and subject.kind in kinds and (survived or name == "read_only"):
            finding = _on_cases(name, check, bench, cases)
            survived = survived and (name, finding.status) != ("survives", "failed")
            yield finding
    if not survived:
        yield Finding("the others", "not run", "it must survive first")
        return
    if "starvation" in checks and subject.kind == "scheduling":
        yield _starvation(bench, horizon)
    if "hash_seeds" in checks:
        yield _hash_seeds(subject, cases, seeds)
    if "growth" in checks:
        problem = _growth(subject)
        status: Status = "failed" if problem else "passed"
        yield Finding(
            "growth", status, problem or "", script("growth", "", subject) * bool(problem)
        )
    if "parity" in checks:
        yield _parity(bench)


class _Problem(NamedTuple):
    """sort: the type of the exception; empty for what a check says itself."""

    sort: str
    text: str


def _problem(check: Check, bench: Bench, case: Case) -> _Problem | None:
    try:
        text = check(bench, case)
    except (Exception, SystemExit) as error:
        sort = type(error).__name__
        return _Problem(sort, described(error))
    return None if text is None else _Problem("", text)


def _on_cases(
    name: str, check: Check, bench: Bench, cases: Iterable[Case], budget: int = 300
) -> Finding:
    """The first failure, on the smallest case that fails with the same sort of problem."""
    for case in cases:
        problem = _problem(check, bench, case)
        if problem is None:
            continue

        def fails(smaller: Case, sort: str = problem.sort) -> bool:
            found = _problem(check, bench, smaller)
            return found is not None and found.sort == sort

        smallest = shrink(case, fails, budget)
        problem = _problem(check, bench, smallest) or problem
        detail = f"{case.name}: {problem.text}"
        shown = script(name, smallest, bench.subject)
        if name == "repeats" and importable(bench.subject) and not fails_afresh(shown):
            # The trials left their traces in the state that makes it fail.
            shown = script(name, case, bench.subject)
        return Finding(name, "failed", detail, shown)
    return Finding(name, "passed")


def _growth(subject: Subject) -> str | None:
    try:
        return growth(subject)
    except (Exception, SystemExit) as error:
        return described(error)


def _starvation(bench: Bench, horizon: int) -> Finding:
    if bench.subject.make().may_starve:
        return Finding("starvation", "declared", "it may starve requests")
    check = starvation(horizon)
    for name, case in streams().items():
        problem = _problem(check, bench, case)
        if problem is not None:
            # A smaller stream could not be told from an order that is merely unusual.
            detail = f"{name}: {problem.text}"
            options = f", horizon={horizon}" if horizon != HORIZON else ""
            shown = script("starvation", name, bench.subject, options)
            return Finding("starvation", "failed", detail, shown)
    return Finding("starvation", "passed")


def _hash_seeds(subject: Subject, cases: tuple[Case, ...], seeds: HashSeeds | None) -> Finding:
    if not importable(subject):
        return Finding("hash_seeds", "not run", f"{subject.name} cannot be imported by its name")
    with ExitStack() as stack:
        processes = seeds or stack.enter_context(HashSeeds())
        differs: Callable[[Case], bool] = lambda case: processes.differ(subject, case)  # noqa: E731
        case = next(filter(differs, cases), None)
        if case is None:
            return Finding("hash_seeds", "passed")
        smallest = shrink(case, differs)
    detail = f"{case.name}: {UNLIKE}"
    return Finding("hash_seeds", "failed", detail, script("hash_seeds", smallest, subject))


def _parity(bench: Bench) -> Finding:
    reason = why_not(bench.subject)
    if reason is not None:
        return Finding("parity", "not run", reason)
    return _on_cases("parity", Engine().check, bench, [parity_case()], budget=60)
