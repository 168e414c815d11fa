"""Engine: what its switches turn."""

from __future__ import annotations

from typing import Any

import pytest

from testbed.core.config import CacheConfig, SchedulerConfig
from testbed.engine import engine, loop
from testbed.engine.engine import Engine
from testbed.policies import registry
from tests.engine.building import Models, some_requests


def served(one: Engine, **options: Any) -> dict[int, list[int]]:
    """Output tokens by request."""
    run = one.run(
        some_requests(3),
        cache=CacheConfig(num_pages=200, page_size=4),
        scheduler=SchedulerConfig(),
        policy=registry.scheduling("fcfs"),
        eviction=registry.eviction("lru"),
        **options,
    )
    return {id: tokens.tolist() for id, tokens in run.outputs.items()}


def test_sharing_of_prefixes_is_a_switch(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    shares: list[bool] = []

    class Noted(engine.TorchAttention):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            shares.append(self.share_prefixes)

    monkeypatch.setattr(engine, "TorchAttention", Noted)
    model = models["tiny-llama"]
    assert served(Engine(model)) == served(Engine(model, share_prefixes=False))
    assert shares == [True, False]


def test_skipping_of_idle_time_is_a_switch(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    skips: list[bool] = []

    class Noted(loop.WallClock):
        def __init__(self, skip_idle: bool) -> None:
            super().__init__(skip_idle)
            skips.append(skip_idle)

    monkeypatch.setattr(loop, "WallClock", Noted)
    one = Engine(models["tiny-llama"])
    assert served(one) == served(one, skip_idle=False)
    assert skips == [True, False]
