"""Go or no-go, what to beware of, and how to roll it out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from testbed.advisor.fingerprint import Fingerprint
from testbed.advisor.forecast import Forecast, Served
from testbed.advisor.statements import Statement, item, say

Choice = Literal["cache_aware", "plain", "measure_both", "none"]

CHOICES: dict[Choice, str] = {
    "cache_aware": "cache-aware serving (a radix tree and prefix-aware scheduling, as in SGLang)",
    "plain": "plain prefix caching with arrival order (as in vLLM)",
    "measure_both": "measure both on a sample of the traffic",
    "none": "no recommendation",
}
MIN_CLIENT_REQUESTS = 20
SMALL_CLIENT = 0.05
"""A client with less than this share of the requests is a small one."""
STARVED = 0.5
"""A small client is starved if it keeps less than this share of what it could find cached."""
MIN_CROSS_CLIENT = 0.005
MAX_NAMED = 5
MAX_HALF_WIDTH = 0.5
"""An interval that is wider tells nothing."""
MIN_ORDER = 0.01
"""Of the hit rate; what the order of service wins below it is next to nothing."""
MIN_TARGET = 0.01
"""A hit rate below it is nothing to go by."""


@dataclass(frozen=True)
class Thresholds:
    """From which expected hit rate on to go, below which not to, and from how many requests on to
    say anything. ValueError unless 0 <= no_go <= go <= 1."""

    go: float = 0.40
    no_go: float = 0.30
    min_requests: int = 200

    def __post_init__(self) -> None:
        if not 0 <= self.no_go <= self.go <= 1:
            raise ValueError(f"no_go={self.no_go}, go={self.go}: 0 <= no_go <= go <= 1 is needed")
        if self.min_requests < 1:
            raise ValueError(f"min_requests={self.min_requests}: at least 1 is needed")


def decide(rate: float, half_width: float, is_single_shot: bool, thresholds: Thresholds) -> Choice:
    """What a hit rate recommends; an interval that holds a threshold asks to measure."""
    half_width = 0.0 if np.isnan(half_width) else half_width
    if rate - half_width > thresholds.go and not is_single_shot:
        return "cache_aware"
    if rate + half_width < thresholds.no_go or is_single_shot:
        return "plain"
    return "measure_both"


def decision(
    num_requests: int,
    seen: Fingerprint,
    seen_mended: Fingerprint,
    rates: Forecast,
    thresholds: Thresholds,
) -> tuple[Choice, list[Statement]]:
    """The choice for the mended prompts, and why; the choice as they are, where it differs."""
    if num_requests < thresholds.min_requests:
        return "none", [
            say(
                "No recommendation: {requests:,} {word} too few, {least:,} are needed. The "
                "figures above are those of the log all the same.",
                requests=num_requests,
                word="request is" if num_requests == 1 else "requests are",
                least=thresholds.min_requests,
            )
        ]
    states = (
        ("as it is", rates.now, seen.is_single_shot, rates.gaps.scheduling),
        ("after the mends", rates.mended, seen_mended.is_single_shot, rates.mended_gaps.scheduling),
    )
    choices = [
        decide(served.rate, served.half_width, shot, thresholds) for _, served, shot, _ in states
    ]
    said: list[Statement] = []
    for choice, (when, served, shot, scheduling) in zip(choices, states, strict=True):
        said.append(
            say(
                "{label}: {choice}. The expected hit rate is {rate:.1%}{interval}; above {go:.0%} "
                "cache-aware serving is recommended, below {no_go:.0%} it is not, between them "
                "measure{single}.",
                label="Recommended" if choices[0] == choices[1] else f"Recommended {when}",
                choice=CHOICES[choice],
                rate=served.rate,
                interval=margin(served),
                go=thresholds.go,
                no_go=thresholds.no_go,
                single="; prompts are single shots, for which it never is" if shot else "",
            )
        )
        if choice == "cache_aware":
            said.append(_what_order_wins(max(scheduling, 0.0)))
    # Where both states ask for the same, what is said of the second holds.
    return choices[1], said[len(said) // 2 :] if choices[0] == choices[1] else said


def margin(served: Served) -> str:
    """How sure a simulated rate is, to stand behind it; that it is not, for too few requests."""
    if not served.half_width <= MAX_HALF_WIDTH:
        return " (too few requests for an interval)"
    return f" ± {served.half_width:.1%}"


def _what_order_wins(scheduling: float) -> Statement:
    if scheduling < MIN_ORDER:
        return say(
            "At this cache size and concurrency the order of service wins next to nothing (at most "
            "{scheduling:.1%}): plain prefix caching in arrival order finds as much.",
            scheduling=scheduling,
        )
    return say(
        "The order of service wins at most {scheduling:.1%} more than arrival order, which is what "
        "cache-aware scheduling is for.",
        scheduling=scheduling,
    )


def warnings(rates: Forecast) -> list[Statement]:
    """Isolation of tenants, starved small tenants, requests that do not fit."""
    said = []
    clients = len(np.unique(rates.now.clients))
    across = rates.bound.rate - rates.isolated_bound.rate
    across_mended = rates.mended_bound.rate - rates.mended_isolated_bound.rate
    if clients > 1 and max(across, across_mended) >= MIN_CROSS_CLIENT:
        said.append(
            item(
                "Isolation: {across:.1%} of the prompt tokens are shared between clients. By "
                "timing, one client can learn what another has asked; if they must be isolated "
                "(cache salts, namespaces), the bound falls from {bound:.1%} to {isolated:.1%}"
                + (
                    ", and after the mends from {mended:.1%} to {mended_isolated:.1%}."
                    if rates.mended_bound != rates.bound
                    else "."
                ),
                across=max(across, 0.0),
                bound=rates.bound.rate,
                isolated=rates.isolated_bound.rate,
                mended=rates.mended_bound.rate,
                mended_isolated=rates.mended_isolated_bound.rate,
            )
        )
    starved = _starved(rates)
    if starved:
        worst = starved[0]
        said.append(
            item(
                "Starvation: {count:,} small {clients} more than half of the hits to eviction "
                "by others: {named}. The first keeps {kept:.1%} of its prompt tokens cached, "
                "{could:.1%} are possible. Give tenants budgets of their own, or a fair "
                "scheduler.",
                count=len(starved),
                clients="client loses" if len(starved) == 1 else "clients lose",
                named=", ".join(name for name, _, _ in starved[:MAX_NAMED])
                + (", ..." if len(starved) > MAX_NAMED else ""),
                name=worst[0],
                kept=worst[1],
                could=worst[2],
            )
        )
    if rates.refused:
        said.append(
            item(
                "{refused:,} {requests} not fit the cache at all, as sent or mended, and {were} "
                "left out of every rate and bound on this page.",
                refused=rates.refused,
                requests="request does" if rates.refused == 1 else "requests do",
                were="was" if rates.refused == 1 else "were",
            )
        )
    return said


def _starved(rates: Forecast) -> list[tuple[str, float, float]]:
    """(client, hit rate, hit rate without a limit) of small clients that eviction hurts most."""
    now = rates.now
    found = []
    names, owner, counts = np.unique(now.clients, return_inverse=True, return_counts=True)
    for i, name in enumerate(names):
        if counts[i] < MIN_CLIENT_REQUESTS or counts[i] >= SMALL_CLIENT * len(owner):
            continue
        own = owner == i
        tokens = now.tokens[own].sum()
        kept, could = now.hits[own].sum() / tokens, rates.unlimited_hits[own].sum() / tokens
        if could >= MIN_CROSS_CLIENT and kept < STARVED * could:
            found.append((str(name), float(kept), float(could)))
    return sorted(found, key=lambda one: one[1] - one[2])


def rollout(
    choice: Choice, rates: Forecast, num_findings: int, rates_hold: bool
) -> list[Statement]:
    """Steps from here to production. rates_hold: the rates are those of the whole log."""
    shadow = "Shadow: log the hit rate for 48 hours with the template as it is"
    if rates_hold:
        steps = [
            item(
                shadow + "; expected {now:.1%}{interval}. If it is off by more, correct cache size "
                "and concurrency here first.",
                now=rates.now.rate,
                interval=margin(rates.now),
            )
        ]
    else:
        steps = [item(shadow + "; what to expect the sample does not tell.")]
    if num_findings:
        steps.append(
            item(
                "Mend {findings}, behind a flag; check the model's answers where a mend changes "
                "what it reads.",
                findings="the finding above"
                if num_findings == 1
                else f"the {num_findings} findings above, dearest first, each",
            )
        )
    half_width = rates.mended.half_width
    target = rates.mended.rate - (half_width if half_width <= MAX_HALF_WIDTH else 0.0)
    tenth = "Serve a tenth of the traffic for a day"
    if rates_hold and target >= MIN_TARGET:
        steps.append(
            item(
                tenth + ": go on at {target:.1%} or more, the lower end of what is expected"
                "{mended}.",
                target=target,
                mended=" after the mends" if num_findings else "",
            )
        )
    else:
        steps.append(item(tenth + ": go on if latency and throughput are no worse than before."))
    if choice == "measure_both":
        steps.append(item("In that day send half of it to each of the two kinds of serving."))
    steps.append(item("Alert when the hit rate of a client falls by half: templates drift."))
    return steps
