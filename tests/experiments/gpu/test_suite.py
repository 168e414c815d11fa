"""The suite's own code, at tiny sizes on the CPU: its figures mean nothing here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.kernels.conftest import OBSTACLE

ROOT = Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.skipif(OBSTACLE is not None, reason=str(OBSTACLE))
NOT_THERE = ("simpy", "hydra", "omegaconf", "pandas", "pyarrow")
"""What a GPU machine need not have."""


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    missing = folder / "missing"
    missing.mkdir()
    for name in NOT_THERE:
        (missing / f"{name}.py").write_text(f"raise ModuleNotFoundError(name={name!r})\n")
    path = os.pathsep.join(map(str, (missing, ROOT, ROOT / "kernels")))
    env = {**os.environ, "PYTHONPATH": path}
    env.pop("TRITON_INTERPRET", None)
    return subprocess.run(
        [sys.executable, "-m", "experiments.gpu", "--smoke", "--output", str(folder), *arguments],
        cwd=ROOT, env=env, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_quick_parts_leave_their_results(tmp_path: Path) -> None:
    done = run(tmp_path, "--parts", "ceilings", "kernels", "steps")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "its figures mean nothing" in done.stdout
    records = {path.stem: json.loads(path.read_text()) for path in tmp_path.glob("smoke/*.json")}
    assert records.keys() == {"ceilings", "kernels", "steps"}
    assert all(record["smoke"] and record["card"] == "cpu" for record in records.values())
    rows = records["steps"]["models"]["llama-8b"]["rows"]
    # Two rows of 20 tokens; 20 tokens after 16; both at once.
    assert [row["decode_context"] for row in rows] == [40, 0, 20]
    assert [row["prefill_pairs"] for row in rows] == [0, 20 * 16 + 210, 210]


@pytest.mark.slow
def test_every_part_runs_and_its_runs_replay(tmp_path: Path) -> None:
    from experiments.gpu.recorded import main as convert

    done = run(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads((tmp_path / "smoke/throughput.json").read_text())
    assert record["peer_error"] is None
    assert convert([str(tmp_path / "smoke")]) == 0
    for name in ("below", "at", "past", "thrash", "lpm"):
        assert (tmp_path / "smoke" / name / "COMPLETE").is_file()


def test_without_a_gpu_it_says_so(tmp_path: Path, capsys: Any) -> None:
    import torch

    from experiments.gpu.parts import run_parts

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    run_parts(["ceilings"], tmp_path, False, SimpleNamespace(value=0))
    assert capsys.readouterr().out == "No GPU here: nothing to measure.\n"
    assert list(tmp_path.iterdir()) == []


def test_a_part_that_crashes_or_hangs_does_not_stop_the_others(tmp_path: Path) -> None:
    from experiments.gpu.__main__ import supervise
    from tests.experiments.gpu.parts_that_end import run_all

    names = ["one", "crash", "hang", "last"]
    assert supervise(run_all, names, [inf, inf, 0.1, inf], tmp_path) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)
    assert supervise(run_all, ["one", "last"], [inf, inf], tmp_path) == 0
    assert supervise(run_all, ["wrong"], [inf], tmp_path) == 1


def test_a_part_that_fails_is_written_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    from experiments.gpu import parts as suite

    def fail(setting: Any) -> Iterator[dict[str, Any]]:
        yield {"decode": [1]}
        raise MemoryError("3 pages fit")

    fakes = {
        "experiments.gpu.kernels": SimpleNamespace(run=fail),
        "experiments.gpu.tokens": SimpleNamespace(run=lambda setting: [{"wrong": 2}]),
        "experiments.gpu.sharing": SimpleNamespace(run=lambda setting: [{"rows": []}]),
    }
    monkeypatch.setattr(suite, "import_module", fakes.__getitem__)
    assert not suite.run_part("kernels", tmp_path, smoke=True)
    assert not suite.run_part("tokens", tmp_path, smoke=True)
    assert suite.run_part("sharing", tmp_path, smoke=True)
    record = json.loads((tmp_path / "kernels.json").read_text())
    assert record["failed"] == "MemoryError: 3 pages fit"
    assert record["decode"] == [1]
    assert not record["finished"]
    assert "MemoryError" in capsys.readouterr().err
    assert json.loads((tmp_path / "sharing.json").read_text())["finished"]


def test_a_lost_device_takes_a_new_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from experiments.gpu import parts as suite

    def lost() -> None:
        raise torch.AcceleratorError("an illegal memory access was encountered")

    def leave(status: int) -> None:
        raise SystemExit(status)

    monkeypatch.setattr(
        suite, "import_module", lambda name: SimpleNamespace(run=lambda setting: [])
    )
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "Card  One")
    monkeypatch.setattr(torch.cuda, "synchronize", lost)
    monkeypatch.setattr(os, "_exit", leave)
    begun = SimpleNamespace(value=0)
    with pytest.raises(SystemExit) as ended:
        suite.run_parts(["kernels", "tokens"], tmp_path, False, begun)
    assert ended.value.code == suite.LOST
    assert begun.value == 1
    assert json.loads((tmp_path / "card-one/kernels.json").read_text())["card"] == "Card  One"


def test_what_is_measured_is_written_down_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from experiments.gpu import parts as suite

    written: list[dict[str, Any]] = []

    def measure(setting: Any) -> Iterator[dict[str, Any]]:
        rows: list[int] = []
        for row in range(3):
            written.append(json.loads((tmp_path / "steps.json").read_text()))
            rows.append(row)
            yield {"rows": rows}

    monkeypatch.setattr(suite, "import_module", lambda name: SimpleNamespace(run=measure))
    assert suite.run_part("steps", tmp_path, smoke=True)
    assert [record.get("rows") for record in written] == [None, [0], [0, 1]]
    assert not any(record["finished"] for record in written)


def test_made_up_sequences_have_the_shape_that_is_asked_for() -> None:
    from experiments.gpu.models import Built
    from experiments.gpu.steps import Point, make_batch

    built = Built(SimpleNamespace(vocab_size=9), SimpleNamespace(num_pages=9), None)  # type: ignore[arg-type]
    point = Point(rows=2, context=33, chunk=10, prefix=16)
    assert point.pages == 2 * 3 + 2
    batch = make_batch(point, built, np.random.default_rng(0))
    # 33 tokens each, the fed-back one included; 10 * 16 + 10 * 11 / 2 pairs over 26 tokens.
    assert batch.shape == (2, 66, 1, 10, 215, 26, 3, 0)
    assert [s.num_computed_tokens for s in batch.decodes] == [32, 32]
    (prefill,) = batch.prefills
    assert prefill.completes
    pages = np.concatenate([s.pages for s in (*batch.decodes, prefill.sequence)])
    assert len(set(pages.tolist())) == point.pages


def test_weights_read_by_a_step_leave_an_embedding_out_unless_it_is_the_head() -> None:
    import torch
    from transformers import LlamaConfig

    from experiments.gpu.models import weight_bytes_per_step
    from testbed.engine.model import build_module, wrap_module

    sizes = {}
    for tied in (True, False):
        config = LlamaConfig(
            hidden_size=8, intermediate_size=12, num_hidden_layers=1, num_attention_heads=2,
            num_key_value_heads=1, vocab_size=20, tie_word_embeddings=tied,
        )  # fmt: skip
        module = build_module(config, dtype=torch.float32, seed=0)
        sizes[tied] = weight_bytes_per_step(wrap_module("m", module, torch.device("cpu")))
    # q and o of 8 x 8, k and v of 8 x 4, three of 8 x 12, norms of 8, a head of 20 x 8.
    assert sizes == {tied: 4 * (2 * 64 + 2 * 32 + 3 * 96 + 3 * 8 + 160) for tied in (True, False)}


def test_recorded_runs_come_back_as_they_were(tmp_path: Path) -> None:
    from experiments.gpu import recorded
    from testbed.core.config import CacheConfig, SchedulerConfig
    from testbed.engine.loop import serve
    from testbed.policies import registry
    from tests.engine.building import ScriptedExecutor, some_requests

    cache, scheduler = CacheConfig(num_pages=12, page_size=16), SchedulerConfig(reserve="ratio")
    run = serve(
        some_requests(6),
        executor=ScriptedExecutor(),
        cache=cache,
        scheduler=scheduler,
        policy=registry.scheduling("lpm"),
        eviction=registry.eviction("lru"),
    )
    config = recorded.config_of(
        "none", "float32", cache, scheduler, "lpm", "lru", {"kind": "made up", "seed": 0}
    )
    saved = recorded.SavedRun(config, {"hardware": "h"}, run.record, run.added, run.measured)
    file = tmp_path / f"one{recorded.SUFFIX}"
    recorded.save(file, saved)
    back = recorded.read(file)
    assert back.config == config
    assert back.record.counters == run.record.counters
    assert back.added["prompt"][3].tolist() == some_requests(6)[3].prompt.tolist()
    assert [row.tolist() for row in back.measured["tokens"]] == [
        row.tolist() for row in run.measured["tokens"]
    ]
    assert recorded.main([str(tmp_path)]) == 0
    assert (tmp_path / "one" / "COMPLETE").is_file()
    back.record.decisions["tokens"][4] += 1  # type: ignore[index]
    assert recorded.differing_decision(back) is not None
