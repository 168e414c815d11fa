"""The loop: who is refused, what time does, and what is left when a step fails."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from testbed.core.batch import Batch, StepResult
from testbed.core.config import CacheConfig, SchedulerConfig
from testbed.core.records import REQUEST_COLUMNS, STEP_COLUMNS
from testbed.core.request import Request
from testbed.core.source import RequestSource
from testbed.engine.attention import TorchAttention
from testbed.engine.executor import ModelExecutor
from testbed.engine.kv_pool import KVPool
from testbed.engine.loop import EngineRun, RunFailed, StepExecutor, WallClock, serve
from testbed.engine.sampling import Sampler
from testbed.policies import registry
from tests.engine.building import Models, ScriptedExecutor, run_engine, some_requests

CACHE = CacheConfig(num_pages=400, page_size=1)


def run_loop(
    executor: StepExecutor, requests: Iterable[Request] | RequestSource, **changes: Any
) -> EngineRun:
    arguments: dict[str, Any] = {
        "executor": executor,
        "cache": CACHE,
        "scheduler": SchedulerConfig(),
        "policy": registry.scheduling("fcfs"),
        "eviction": registry.eviction("lru"),
    }
    return serve(requests, **{**arguments, **changes})


def test_what_the_model_cannot_run_is_refused_alone(models: Models) -> None:
    good = some_requests(1)[0]
    prompt = good.prompt
    requests = [
        good,
        Request(1, np.array([3, 512], dtype=np.int32), max_new_tokens=2),
        Request(2, np.array([-1, 3], dtype=np.int32), max_new_tokens=2),
        Request(3, prompt, np.array([1, 700], dtype=np.int32)),
        Request(4, prompt, max_new_tokens=2049 - len(prompt)),
        replace(good, id=5),
    ]
    run = run_engine(models["tiny-llama"], requests, CACHE, SchedulerConfig())
    rows = dict(
        zip(
            run.record.requests["request"].tolist(),
            run.record.requests["refusal"].tolist(),
            strict=True,
        )
    )
    assert rows == {
        0: "",
        1: "prompt token 512: the vocabulary is 0 to 511",
        2: "prompt token -1: the vocabulary is 0 to 511",
        3: "output token 700: the vocabulary is 0 to 511",
        4: "2049 prompt and output tokens: the context is 2048",
        5: "",
    }
    assert run.outputs.keys() == {0, 5}
    # A replay must turn the same ones away.
    assert run.added["request"].tolist() == sorted(rows)
    assert run.added["refusal"].tolist() == [rows[id] for id in sorted(rows)]
    assert [row[3] for row in run.log.rows if row[2] == "refuse"] == [1, 2, 3, 4]


def test_what_never_fits_the_pool_is_refused_by_the_scheduler() -> None:
    request = Request(0, np.zeros(390, dtype=np.int32), max_new_tokens=12)
    run = run_loop(ScriptedExecutor(), [request])
    assert run.record.requests["status"].tolist() == ["refused"]
    assert run.record.requests["refusal"].tolist() == ["needs 401 pages, the pool has 400"]
    # The simulator must refuse it too.
    assert run.added["request"].tolist() == [0]


def test_idle_time_is_skipped_but_stays_in_the_books() -> None:
    requests = [replace(r, arrival=1000.0 * r.id) for r in some_requests(3)]
    run = run_loop(ScriptedExecutor(), requests)
    assert run.record.requests["arrival_s"].tolist() == [0, 1000, 2000]
    admitted = run.record.requests["admitted_s"]
    assert admitted[0] < 1000 == admitted[1] < 2000 == admitted[2]


def test_waiting_takes_its_time_where_idle_time_is_kept() -> None:
    clock = WallClock(skip_idle=False)
    clock.wait_until(0.01)
    assert clock.now() >= 0.01
    skipping = WallClock(skip_idle=True)
    skipping.wait_until(5000.0)
    assert skipping.now() >= 5000.0


def test_instants_add_up() -> None:
    requests = [replace(r, arrival=0.001 * r.id) for r in some_requests(12)]
    run = run_loop(ScriptedExecutor(), requests)
    steps, measured = run.record.steps, run.measured
    assert list(run.record.requests) == list(REQUEST_COLUMNS)
    assert list(steps) == list(STEP_COLUMNS)
    assert steps["step"].tolist() == measured["step"].tolist()
    assert (steps["start_s"] + measured["seconds"]).tolist() == steps["end_s"].tolist()
    assert (steps["start_s"][1:] >= steps["end_s"][:-1]).all()
    arrivals = {r.id: r.arrival for r in requests}
    boundaries = {0.0, *steps["start_s"].tolist(), *steps["end_s"].tolist()}
    for id, added in zip(run.added["request"].tolist(), run.added["added_s"], strict=True):
        assert arrivals[id] <= added
        assert float(added) in boundaries
    for name in ("decode_rows", "prefill_rows", "prefill_tokens"):
        assert measured[name].tolist() == steps[name].tolist()
    assert [len(tokens) for tokens in measured["tokens"]] == measured["logit_rows"].tolist()


def test_parts_of_a_step_are_measured(models: Models) -> None:
    run = run_engine(models["tiny-llama"], some_requests(2), CACHE, SchedulerConfig())
    parts = sum(run.measured[name] for name in ("prepare_s", "forward_s", "sample_s"))
    assert (run.measured["forward_s"] > 0).all()
    assert (parts <= run.measured["seconds"]).all()


def test_progress_is_told() -> None:
    heard: list[int] = []
    run_loop(ScriptedExecutor(), some_requests(4), progress=heard.append)
    assert heard == [1, 2, 3, 4]


class Breaking(ScriptedExecutor):
    """Fails at its fifth step."""

    def execute(self, batch: Batch) -> StepResult:
        if batch.step == 5:
            raise RuntimeError("the device is gone")
        return super().execute(batch)


def test_a_failed_step_leaves_what_was_done() -> None:
    short = [replace(r, max_new_tokens=2 if r.id < 2 else 9) for r in some_requests(4)]
    with pytest.raises(RunFailed, match=r"^step 5: RuntimeError: the device is gone$") as failure:
        run_loop(Breaking(), short)
    partial = failure.value.partial
    assert partial.measured["step"].tolist() == [1, 2, 3, 4]
    assert sorted(partial.record.requests["request"].tolist()) == [0, 1]
    assert partial.outputs.keys() == {0, 1}
    assert isinstance(failure.value.__cause__, RuntimeError)


def test_configs_that_no_model_can_run_are_refused(models: Models) -> None:
    model = models["tiny-llama"]
    pool = KVPool(model, 10, 4)
    executor = ModelExecutor(model, pool, TorchAttention(pool), Sampler())
    with pytest.raises(ValueError, match="the KV pool has 10 pages of 4 tokens"):
        run_loop(executor, [], cache=CacheConfig(num_pages=11, page_size=4))
    with pytest.raises(ValueError, match="the KV pool has 10 pages of 4 tokens"):
        run_loop(executor, [], cache=CacheConfig(num_pages=10, page_size=8))
    with pytest.raises(ValueError, match="min_computed_tokens=0"):
        run_loop(ScriptedExecutor(), [], scheduler=SchedulerConfig(min_computed_tokens=0))
    with pytest.raises(ValueError, match="eviction=Belady: only a simulation knows the future"):
        run_loop(ScriptedExecutor(), [], eviction=registry.eviction("belady"))
