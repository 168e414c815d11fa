"""Decision parity: the simulator repeats every decision of a run on the real engine."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np

from testbed.conformance.case import Case, tokens
from testbed.conformance.checks import Bench
from testbed.conformance.subject import Company, Subject
from testbed.core.config import CacheConfig, SchedulerConfig
from testbed.core.request import Request
from testbed.sim.recorded import replay

MODEL = "tiny-llama"


def why_not(subject: Subject) -> str | None:
    """Why parity cannot be looked at; None if it can."""
    if subject.kind == "routing":
        return "the engine is one replica, and has no router"
    if subject.policy.oracle:
        return "an oracle runs in the simulator alone"
    missing = [name for name in ("torch", "transformers") if find_spec(name) is None]
    if missing:
        return (
            f"{' and '.join(missing)} not installed here: pip install 'radix-testbed[engine]', "
            "or in a checkout .venv-engine/bin/testbed, once make test-engine has made it"
        )
    return None


def parity_case() -> Case:
    """Requests that come at once and press on memory, on pages of 4."""
    draw = np.random.default_rng(0)
    prefixes = [draw.integers(0, 500, 24).tolist() for _ in range(2)]
    requests = tuple(
        Request(
            i,
            tokens([*prefixes[i % 2], *draw.integers(0, 500, int(draw.integers(1, 16))).tolist()]),
            max_new_tokens=int(draw.integers(1, 16)),
            client="abc"[i % 3],
            priority=i % 4,
        )
        for i in range(10)
    )
    pressing = SchedulerConfig(
        max_running=5, chunk_size=32, reserve="ratio", reserve_ratio=0.1, reserve_ratio_floor=0.05
    )
    return Case("on the engine", requests, CacheConfig(26, page_size=4), pressing)


class Engine:
    """A tiny model on the CPU, loaded once."""

    def __init__(self) -> None:
        from testbed.engine.model import load_model

        self._model = load_model(MODEL)

    def check(self, bench: Bench, case: Case) -> str | None:
        """The first decision in which engine and simulator differ; None if there is none."""
        from testbed.engine.attention import TorchAttention
        from testbed.engine.executor import ModelExecutor
        from testbed.engine.kv_pool import KVPool
        from testbed.engine.loop import serve
        from testbed.engine.sampling import Sampler

        subject = bench.subject

        def policies() -> dict[str, Any]:
            company = Company()
            others = {"policy": company.scheduling(), "eviction": company.eviction()}
            mine = "policy" if subject.kind == "scheduling" else "eviction"
            return {**others, mine: subject.make()}

        configs: dict[str, Any] = {"cache": case.cache, "scheduler": case.scheduler}
        pool = KVPool(self._model, case.cache.num_pages, case.cache.page_size)
        executor = ModelExecutor(self._model, pool, TorchAttention(pool), Sampler())
        run = serve(case.requests, executor=executor, **configs, **policies())
        again = replay(run.added, run.measured, **configs, **policies())
        return again.diverged or run.log.first_difference(again.log)
