"""The work of the fairness benchmark, at a reduced size."""

from __future__ import annotations

from functools import partial

import pytest

from experiments.benchmarks import fairness
from testbed.policies import registry
from testbed.workloads import Client, MultiClientWorkload


def test_outcomes_are_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = MultiClientWorkload([Client("a", 1.0, 16, 4, system_tokens=32)], duration=3.0)
    hits, rate, clairvoyant, _, total, extended = fairness.outcome(
        workload, partial(registry.scheduling, "fcfs"), 1600
    )
    # Three prompts of 48 tokens, a second apart: the last two find the 32 of the first.
    assert (hits, rate) == (64, pytest.approx(64 / 144))
    assert clairvoyant == pytest.approx(rate)
    assert (total, extended) == (0.0, 0.0)


def test_the_figures_are_the_worst_over_the_workloads(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = {"vtc": (10, 4.0), "locality_fair": (60, 30.0), "lpm": (80, 900.0)}
    monkeypatch.setattr(fairness, "POLICIES", {name: lambda n=name: n for name in table})

    def outcome(workload: object, policy: object, pool: int) -> tuple[float, ...]:
        hits, gap = table[policy()]  # type: ignore[operator]
        return hits, hits / 100, 0.9, 1.0, gap, 0.0

    monkeypatch.setattr(fairness, "outcome", outcome)
    workload = MultiClientWorkload([Client("a", 1.0, 16, 4)], duration=3.0)
    hits, gap = fairness.compare("two", [workload, workload], 100)
    assert (hits, gap) == (60 / 80, 30 / (2 * 2 * 100))
    assert "75.0%" in capsys.readouterr().out
