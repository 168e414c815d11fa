"""The demo's second half: hit rates side by side, and a verdict that is the exit status."""

from __future__ import annotations

from typing import Any

import pytest

from experiments import demo_engine
from testbed.sim import recorded

POLICIES = ("fcfs", "lpm", "dfs_weight", "vtc", "dlpm", "locality_fair")


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_engine, "REQUESTS", 24)


def test_the_demo_ends_with_the_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    assert demo_engine.main() == 0
    lines = capsys.readouterr().out.splitlines()
    for policy in POLICIES:
        (row,) = (line.split() for line in lines if line.startswith(f"{policy} "))
        assert all(0 < float(rate) < 1 for rate in row[1:])
    assert lines[-1].startswith("replayed in the simulator: ")
    assert lines[-1].endswith(", all equal")


def test_a_difference_fails_the_demo(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    execute = recorded.RecordedExecutor.execute

    def too_slow(self: Any, batch: Any) -> Any:
        if batch.step == 20:
            raise recorded.ReplayDiverged("no more")
        return execute(self, batch)

    monkeypatch.setattr(recorded.RecordedExecutor, "execute", too_slow)
    assert demo_engine.main() == 1
    assert "DIFFERENT under fcfs: decision " in capsys.readouterr().out
