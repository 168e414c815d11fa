"""The eviction benchmark serves what it says, both ways."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from experiments.benchmarks import eviction
from testbed.core.request import Request
from testbed.policies.eviction.oracle import Belady
from testbed.policies.eviction.recency import Fifo, Lru

ROWS = [[0, 1, 2], [0, 3], [4, 5], [0, 1, 2]]


def single() -> list[Request]:
    return eviction.requests_of([block] for row in ROWS for block in row)


def test_flat_blocks_leave_whatever_hangs_on_them() -> None:
    # Four blocks, LRU: 0 1 2, 0 hit, 3, 4 in place of 1, 5 of 2, 0 hit, then 1 and 2 miss.
    assert eviction.count_hits(single(), Lru(), 4) == 2
    # FIFO: 0 hit; 4 in place of 0, 5 of 1; all of the last three miss: 0 goes for 2, then 1, 2.
    assert eviction.count_hits(single(), Fifo(), 4) == 1
    # Belady keeps 0, 1 and 2.
    assert eviction.count_hits(single(), Belady(0), 4) == 4


def test_a_tree_gives_up_leaves_and_keeps_the_path_that_is_served() -> None:
    whole = eviction.requests_of(ROWS)
    # 0 hit. [3] takes the last page; [4, 5] then 2 and 1; of the last prompt 0 is left.
    assert eviction.count_hits(whole, Lru(), 4) == 2
    # Belady drops 3 and, since [4, 5] must be cached, 2.
    assert eviction.count_hits(whole, Belady(0), 4) == 3


def test_the_run_compares_what_follows_the_same_rule(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def peer(driver: str, arguments: dict[str, Any]) -> dict[str, Any]:
        hits = {"LRU": [2, 1], "SLRU": [1, 1], "Belady": [3, 3]}
        return {"hits": {name: {"4": counts} for name, counts in hits.items()}}

    policies = {name: eviction.POLICIES[name] for name in ("LRU", "SLRU", "Belady")}
    monkeypatch.setattr(eviction, "POLICIES", policies)
    monkeypatch.setattr(eviction, "BLOCKS", (4,))
    monkeypatch.setattr(eviction, "REFERENCE_TREE", {"LRU": (20.0,)})
    monkeypatch.setattr(eviction, "block_rows", lambda: ROWS)
    monkeypatch.setattr(eviction, "find_data_file", lambda name: name)
    monkeypatch.setattr(eviction, "LIBCACHESIM", SimpleNamespace(run=peer))
    (reached,) = eviction.run()
    # Belady's four flat hits are one more than this peer claims.
    assert (reached.figure, reached.holds) == (1, True)
    printed = capsys.readouterr().out
    assert "LRU            4   20.000    20.000   10.000   20.000    66.7%  0, 0" in printed
    assert "another rule" in printed
