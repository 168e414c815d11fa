"""What must hold of a policy on any case; each check raises, or says what is wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np

from testbed.conformance.case import Case
from testbed.conformance.serving import decisions, first_difference, serve
from testbed.conformance.subject import Subject
from testbed.conformance.tampering import Tampered, serve_guarded
from testbed.core.records import Columns, RunRecord
from testbed.metrics.bounds import run_bounds


class Bench:
    """The subject, and what it did on each case in the plainest way: asked for often, run once."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self._records: dict[Case, RunRecord] = {}

    def record(self, case: Case) -> RunRecord:
        """Step by step."""
        if case not in self._records:
            self._records[case] = serve(self.subject, case)
        return self._records[case]

    def compare(self, case: Case, other: RunRecord) -> str | None:
        """Where another run of the case took another decision."""
        return first_difference(decisions(self.record(case)), decisions(other))


Check: TypeAlias = Callable[[Bench, Case], str | None]
"""None if all is well."""


def survives(bench: Bench, case: Case) -> None:
    """No crash; every request finishes or is refused; the cache's books balance at every step."""
    bench.record(case)


def read_only(bench: Bench, case: Case) -> str | None:
    """Nothing but the policy's own state changes while it decides."""
    try:
        serve_guarded(bench.subject, case)
    except Tampered as tampered:
        return str(tampered)
    except (AttributeError, ValueError) as error:
        if "read-only" in str(error) or "WRITEABLE" in str(error):
            raise
    except (Exception, SystemExit):
        return None
    return None


def repeats(bench: Bench, case: Case) -> str | None:
    """Two runs with new instances take the same decisions."""
    return bench.compare(case, serve(bench.subject, case))


def ignores_names(bench: Bench, case: Case) -> str | None:
    """Other names for clients, programs and namespaces, in the same order, change no decision."""
    renamed = tuple(
        replace(
            request,
            client=f"renamed {request.client}",
            program=request.program and f"renamed {request.program}",
            namespace=request.namespace and f"renamed {request.namespace}",
        )
        for request in case.requests
    )
    return bench.compare(case, serve(bench.subject, replace(case, requests=renamed)))


def quiet_steps(bench: Bench, case: Case) -> str | None:
    """The same decisions whether or not passes and steps are skipped that should not matter.

    A scheduling policy whose order changes while nothing happens but decoding (by the clock, by
    the number of passes) must not declare reacts_to_decoding = False.
    """
    skipping = serve(bench.subject, case, skip_quiet_steps=True)
    difference = bench.compare(case, skipping)
    policy = bench.subject.policy
    if difference is None and not getattr(policy, "reacts_to_decoding", True):
        reacting: type[Any] = type(policy.__name__, (policy,), {"reacts_to_decoding": True})
        difference = bench.compare(case, serve(bench.subject, case, policy=reacting))
        if difference is not None:
            difference += ", where passes after mere decoding are not skipped"
    return difference


def within_bounds(bench: Bench, case: Case) -> str | None:
    """Hit tokens <= clairvoyant eviction in the same order <= sharing bound."""
    if case.scheduler.reserve != "full" or case.cache.insert_at != "commit":
        return None
    record = bench.record(case)
    if record.requests["preemptions"].any():
        return None
    bounds = run_bounds(
        record,
        case.requests,
        min_computed_tokens=case.scheduler.min_computed_tokens,
        cache_outputs=case.cache.cache_outputs,
    )
    hits = int(record.requests["cached_tokens"].sum())
    chain = (hits, bounds.clairvoyant.hit_tokens, bounds.sharing.hit_tokens)
    if chain[0] <= chain[1] <= chain[2]:
        return None
    return "hit tokens, clairvoyant bound and sharing bound are {}, {} and {}".format(*chain)


def starvation(horizon: int) -> Check:
    """No watched request is passed by more than `horizon` later ones, unless declared."""

    def passed(bench: Bench, case: Case) -> str | None:
        columns = serve(bench.subject, case, skip_quiet_steps=True, balances=False).requests
        count = num_passing(columns, case.watched)
        if count <= horizon:
            return None
        return (
            f"request {case.watched} is passed by {count} of the {len(case.requests)} requests, "
            f"which arrived later; {horizon} are accepted unless the policy declares may_starve"
        )

    return passed


def num_passing(columns: Columns, request: int | None) -> int:
    """Requests that arrived after `request` and were first admitted before it; 0 if refused."""
    (place,) = np.flatnonzero(columns["request"] == request)
    admitted = columns["admitted_step"]
    if admitted[place] < 0:
        return 0
    later = columns["arrival_s"] > columns["arrival_s"][place]
    return int((later & (admitted >= 0) & (admitted < admitted[place])).sum())


EVERY_KIND = ("scheduling", "eviction", "routing")
ON_EVERY_CASE: Mapping[str, tuple[tuple[str, ...], Check]] = MappingProxyType(
    {
        "survives": (EVERY_KIND, survives),
        "read_only": (EVERY_KIND, read_only),
        "repeats": (EVERY_KIND, repeats),
        # A router may well hash what a client is called.
        "ignores_names": (("scheduling", "eviction"), ignores_names),
        "quiet_steps": (EVERY_KIND, quiet_steps),
        "within_bounds": (EVERY_KIND, within_bounds),
    }
)
"""By name: the kinds of policies that a check is for, and the check."""
