"""The command that serves the grid of order, service and cache size on a real model."""

from __future__ import annotations

import pytest

from experiments import order_grid_engine
from experiments.order_grid_engine import Point


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order_grid_engine, "REQUESTS", 16)
    monkeypatch.setattr(order_grid_engine, "PAGES", (64, 2048))


def test_it_prints_both_hit_rates_and_a_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    assert order_grid_engine.main() == 0
    lines = capsys.readouterr().out.splitlines()
    rows = [line.split() for line in lines if line.startswith(("canonical", "random_per_request"))]
    assert len(rows) == 2 * 2 * 2
    for order, scheduler, tokens, bound, engine, simulator in rows:
        assert engine == simulator
        assert 0 < float(engine) <= float(bound) < 1
        if scheduler == "dfs" or tokens == "8,192":
            assert engine == bound, order
    assert lines[-1] == "engine and simulator: equal, request by request"


def test_a_difference_fails_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    points = [
        Point("canonical", name, 256, 0.8, 0.5, 0.5, equal)
        for name, equal in (("fcfs", False), ("dfs", True))
    ]
    monkeypatch.setattr(order_grid_engine, "grid", lambda engine, progress: points)
    assert order_grid_engine.main() == 1
    out = capsys.readouterr().out
    assert out.count("DIFFERENT") == 1
    assert out.endswith("engine and simulator: 1 of 2 cells differ\n")
