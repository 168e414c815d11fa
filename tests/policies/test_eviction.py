"""The keys of the eviction policies; the order they lead to is tested with the cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from testbed.policies import registry


@dataclass
class Shown:
    last_access: int = 0
    created: int = 0
    hits: int = 1


@pytest.mark.parametrize(  # rows 40-42
    ("name", "node", "key"),
    [
        ("lru", Shown(last_access=42), 42),
        ("fifo", Shown(last_access=9, created=7), 7),
        ("lfu", Shown(hits=5, last_access=3), (5, 3)),
    ],
)
def test_keys(name: str, node: Any, key: Any) -> None:
    assert registry.eviction(name).priority(node, 1000) == key
