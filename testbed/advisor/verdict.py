"""Go or no-go, what to beware of, and how to roll it out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from testbed.advisor.fingerprint import Fingerprint
from testbed.advisor.forecast import Forecast
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
    num_requests: int, seen: Fingerprint, rates: Forecast, thresholds: Thresholds
) -> tuple[Choice, list[Statement]]:
    """The choice for the mended prompts, and why; the choice as they are, where it differs."""
    if num_requests < thresholds.min_requests:
        return "none", [
            say(
                "No recommendation: {requests:,} requests are too few, {least:,} are needed. The "
                "figures above are those of these requests.",
                requests=num_requests,
                least=thresholds.min_requests,
            )
        ]
    shot = seen.is_single_shot
    choices = [
        decide(served.rate, served.half_width, shot, thresholds)
        for served in (rates.now, rates.mended)
    ]
    said = [
        say(
            "{label}: {choice}. The expected hit rate is {rate:.1%} ± {half:.1%}; above {go:.0%} "
            "cache-aware serving pays, below {no_go:.0%} it does not, between them measure"
            "{single}.",
            label="Recommended" if choices[0] == choices[1] else f"Recommended {when}",
            choice=CHOICES[choice],
            rate=served.rate,
            half=served.half_width,
            go=thresholds.go,
            no_go=thresholds.no_go,
            single="; prompts are single shots, for which it never does" if shot else "",
        )
        for choice, served, when in zip(
            choices, (rates.now, rates.mended), ("as it is", "after the mends"), strict=True
        )
    ]
    return choices[1], said[1:] if choices[0] == choices[1] else said


def warnings(rates: Forecast) -> list[Statement]:
    """Isolation of tenants, starved small tenants, requests that do not fit."""
    said = []
    clients = len(np.unique(rates.now.clients))
    across = rates.bound.rate - rates.isolated_bound.rate
    if clients > 1 and across >= MIN_CROSS_CLIENT:
        said.append(
            item(
                "Isolation: {across:.1%} of the prompt tokens are shared between clients. By "
                "timing, one client can learn what another has asked; if they must be isolated "
                "(cache salts, namespaces), the bound falls from {bound:.1%} to {isolated:.1%}.",
                across=across,
                bound=rates.bound.rate,
                isolated=rates.isolated_bound.rate,
            )
        )
    starved = _starved(rates)
    if starved:
        worst = starved[0]
        said.append(
            item(
                "Starvation: {count} small clients lose more than half of their hits to eviction "
                "by others, {name} most ({kept:.1%} of its prompt tokens cached, {could:.1%} "
                "possible). Give tenants budgets of their own, or a fair scheduler.",
                count=len(starved),
                name=worst[0],
                kept=worst[1],
                could=worst[2],
            )
        )
    if rates.now.refused:
        said.append(
            item(
                "{refused:,} requests do not fit the cache at all and were left out.",
                refused=rates.now.refused,
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
    return sorted(found, key=lambda one: one[1] - one[2])[:MAX_NAMED]


def rollout(choice: Choice, rates: Forecast, num_findings: int) -> list[Statement]:
    """Steps from here to production."""
    steps = [
        item(
            "Shadow: log the hit rate for 48 hours with the template as it is; expected "
            "{now:.1%} ± {half:.1%}. If it is off by more, correct cache size and concurrency "
            "here first.",
            now=rates.now.rate,
            half=rates.now.half_width,
        )
    ]
    if num_findings:
        steps.append(
            item(
                "Mend the {findings} findings above, dearest first, each behind a flag; check the "
                "model's answers where one changes what it reads.",
                findings=num_findings,
            )
        )
    steps.append(
        item(
            "Serve a tenth of the traffic for a day: go on at {target:.1%} or more, the lower end "
            "of what is expected after the mends.",
            target=max(rates.mended.rate - np.nan_to_num(rates.mended.half_width), 0.0),
        )
    )
    if choice == "measure_both":
        steps.append(item("In that day send half of it to each of the two kinds of serving."))
    steps.append(item("Alert when the hit rate of a client falls by half: templates drift."))
    return steps
