"""The benchmarks' own code: bars, the command, the peers' plumbing, and what each side serves."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import venv
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.benchmarks import cache, exact, scheduling, simulator, trace
from experiments.benchmarks.__main__ import BENCHMARKS, main
from experiments.benchmarks.bars import Bar, Benchmark, Reached
from experiments.benchmarks.peer_venv import CHECKOUT, DRIVERS, SGLANG, VIDUR, Peer, PeerError
from testbed.core.request import Request
from testbed.policies.scheduling.cache_aware import Lpm
from testbed.policies.scheduling.fair import Dlpm
from testbed.workloads import MooncakeTrace, data_folder


def requests_of(*prompts: list[int]) -> list[Request]:
    return [
        Request(i, np.array(prompt, dtype=np.int32), max_new_tokens=1)
        for i, prompt in enumerate(prompts)
    ]


def shared(a: list[int], b: list[int]) -> int:
    """Length of the common prefix."""
    return next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )


# ---- bars and the command


@pytest.mark.parametrize(
    ("relation", "figure", "holds"),
    [
        (">=", 1.0, True),
        (">=", 0.99, False),
        ("<", 1.0, False),
        ("<", 0.99, True),
        ("==", 1.0, True),
        ("==", 1.01, False),
    ],
)
def test_a_bar_holds_or_not(relation: str, figure: float, holds: bool) -> None:
    assert Bar("ratio", relation, 1.0).reached(figure).holds is holds  # type: ignore[arg-type]


def test_a_result_shows_figure_bar_and_verdict() -> None:
    assert str(Bar("speed", ">=", 50.0).reached(61.234)) == "speed: 61.23x (bar >= 50.00x) ok"
    tokens = Bar("hits", "==", 54_098_411, "tokens").reached(7)
    assert str(tokens) == "hits: 7 tokens (bar == 54,098,411 tokens) BELOW THE BAR"


def measured(*figures: float, error: Exception | None = None) -> Benchmark:
    bars = tuple(Bar(f"figure {i}", ">=", 1.0) for i in range(len(figures)))

    def run() -> list[Reached]:
        if error is not None:
            raise error
        return [bar.reached(figure) for bar, figure in zip(bars, figures, strict=True)]

    return Benchmark("one", "is it so?", bars, run)


def test_the_list_names_every_benchmark_and_all_its_bars(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([]) == 0
    printed = capsys.readouterr().out
    names = ["exact", "cache", "simulator", "trace", "miss_ratio", "advisor", "scheduling"]
    names += ["fairness", "eviction", "routing", "cluster", "engine", "overhead", "fidelity"]
    names += ["sweep", "startup"]
    assert [b.name for b in BENCHMARKS] == names
    for benchmark in BENCHMARKS:
        assert benchmark.bars
        assert f"{benchmark.name}: " in printed
        assert all(str(bar) in printed for bar in benchmark.bars)


@pytest.mark.parametrize(("figures", "code"), [((1.0, 2.0), 0), ((2.0, 0.9), 1), ((0.9, 2.0), 1)])
def test_the_exit_code_is_1_below_any_bar(
    figures: tuple[float, ...], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["one"], (measured(*figures),)) == code
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith(f"figure 1: {figures[1]:.2f}x (bar >= 1.00x)")


def test_an_unknown_name_is_refused_with_the_accepted_ones(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["speed"], (measured(1.0),)) == 2
    assert capsys.readouterr().err == "benchmark 'speed': one of one is needed\n"


@pytest.mark.parametrize("error", [PeerError("no network"), FileNotFoundError("no trace")])
def test_a_benchmark_that_cannot_run_says_why(
    error: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["one"], (measured(1.0, error=error),)) == 2
    assert str(error) in capsys.readouterr().err


# ---- the peers' environments


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A home with the environment of Peer("fake", ("fake==1",)), which is this interpreter."""
    (tmp_path / "fake" / "bin").mkdir(parents=True)
    (tmp_path / "fake" / "bin" / "python").symlink_to(sys.executable)
    (tmp_path / "fake" / "INSTALLED").write_text("fake==1", encoding="utf-8")
    return tmp_path


def test_a_driver_gets_json_and_its_last_line_is_the_result(installed: Path) -> None:
    driver = installed / "driver.py"
    driver.write_text(
        "import json, sys\nprint('chatter')\n"
        "print(json.dumps({'twice': 2 * json.loads(sys.argv[1])['n']}))\n",
        encoding="utf-8",
    )
    assert Peer("fake", ("fake==1",)).run(str(driver), {"n": 21}, installed) == {"twice": 42}


def test_a_driver_that_fails_is_reported_with_its_output(installed: Path) -> None:
    driver = installed / "driver.py"
    driver.write_text("raise SystemExit('the peer broke')\n", encoding="utf-8")
    with pytest.raises(PeerError, match=r"in fake exited 1:\n(.*\n)*.*the peer broke"):
        Peer("fake", ("fake==1",)).run(str(driver), {}, installed)


def test_other_requirements_make_a_new_environment(
    installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def create(folder: Path, with_pip: bool) -> None:
        assert with_pip and not folder.exists()
        (folder / "bin").mkdir(parents=True)
        python = folder / "bin" / "python"
        python.write_text("#!/bin/sh\necho no such release >&2\nexit 1\n", encoding="utf-8")
        python.chmod(0o755)

    monkeypatch.setattr(venv, "create", create)
    with pytest.raises(PeerError, match="fake: pip failed:\nno such release"):
        Peer("fake", ("fake==2",)).run("driver.py", {}, installed)
    assert not (installed / "fake" / "INSTALLED").exists()


def test_stand_ins_serve_the_peer_and_nobody_else(tmp_path: Path) -> None:
    package = tmp_path / "somepeer"
    (package / "heavy").mkdir(parents=True)
    (package / "__init__.py").write_text("", encoding="utf-8")
    (package / "heavy" / "__init__.py").write_text("raise RuntimeError", encoding="utf-8")
    (package / "light.py").write_text(
        "import gpu_kernels.fast as fast\nfrom web_server import App\n"
        "from somepeer.heavy.layers import Layer\nimport bystander\n"
        "class Mine(App, kind='x'): ...\n"
        "@fast.compile\ndef double(x): return 2 * x\n"
        "answer = double(21), bool(App), isinstance(3, Layer), bystander.fast\n",
        encoding="utf-8",
    )
    (tmp_path / "bystander.py").write_text(
        "fast = True\ntry:\n    import numeric_backend\nexcept ImportError:\n    fast = False\n",
        encoding="utf-8",
    )
    program = (
        "import stand_ins; stand_ins.install('somepeer', absent=['somepeer.heavy']); "
        "import somepeer.light; print(somepeer.light.answer)"
    )
    run = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": f"{DRIVERS}:{tmp_path}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.stdout == "(42, False, False, False)\n", run.stderr


# ---- what each side serves


@given(st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=6), min_size=1, max_size=12))
def test_exact_counts_the_longest_prefix_seen_before(prompts: list[list[int]]) -> None:
    expected = sum(
        max((shared(prompt, earlier) for earlier in prompts[:i]), default=0)
        for i, prompt in enumerate(prompts)
    )
    total = sum(map(len, prompts))
    assert exact.serve_one_at_a_time(requests_of(*prompts)) == (expected, total)


@pytest.mark.parametrize(
    ("page_size", "num_tokens", "hit_tokens"),
    [
        (1, 100, 3 + 2 + 3),  # one token of each prompt is computed
        (2, 100, 2 + 2 + 2),
        (1, 4, 3 + 2 + 2),  # the last prompt's tail was evicted for the third's
    ],
)
def test_cache_work_serves_prompts_one_at_a_time(
    page_size: int, num_tokens: int, hit_tokens: int
) -> None:
    prompts = [1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 5, 6], [1, 2, 3, 4]
    work = cache.replay(requests_of(*prompts), page_size, num_tokens)
    assert (work.requests, work.hit_tokens, work.prompt_tokens) == (4, hit_tokens, 16)


def test_both_simulators_get_the_same_requests(tmp_path: Path) -> None:
    workload = simulator.synthetic(32, 1.0)
    simulator.write_vidur_requests(workload, tmp_path / "requests.csv")
    with (tmp_path / "requests.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    served = simulator.simulation(workload).run().record.requests
    order = np.argsort(served["request"])
    assert [float(row["Time"]) for row in rows] == served["arrival_s"][order].tolist()
    assert [int(row["PromptTokenCount"]) for row in rows] == served["prompt_tokens"][order].tolist()
    outputs = [int(row["CompletionTokenCount"]) for row in rows]
    assert outputs == served["output_tokens"][order].tolist()
    assert (served["status"] == "finished").all()


def endless(tokens: int) -> Iterator[Request]:
    """Prompts that share their first half, from four clients in turn."""
    for i in count():
        prompt = np.arange(tokens, dtype=np.int32)
        prompt[tokens // 2 :] += 1000 * (i + 1)
        yield Request(i, prompt, np.zeros(1, dtype=np.int32), client=f"client-{i % 4}")


@pytest.mark.parametrize("policy", [Lpm, Dlpm])
def test_passes_are_measured_under_a_queue_of_constant_length(
    policy: Callable[[], Lpm | Dlpm], monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = count()
    monkeypatch.setattr(scheduling, "time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    times = scheduling.measure(policy(), endless(4096), warm=3, waiting=20, passes=5)
    # A clock that ticks once a look: one tick passes inside schedule(), three around the step.
    assert times == (1000.0, 1000.0, 3000.0)


def test_the_traffic_repeats_and_is_dealt_to_the_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduling, "TRACE", str(write_trace(tmp_path / "trace.jsonl", 3)))
    source = scheduling.traffic(num_clients=2)
    first = [next(source) for _ in range(5)]
    assert [request.id for request in first] == [0, 1, 2, 3, 4]
    assert [request.client for request in first] == [f"client-{i % 2}" for i in range(5)]
    assert (first[3].prompt == first[0].prompt).all()


def write_trace(path: Path, requests: int) -> Path:
    """Request i extends request i - 2 by one block, and its last block is partial."""
    with path.open("w", encoding="utf-8") as file:
        for i in range(requests):
            blocks = [i % 2 + 2 * k for k in range(i // 2 + 1)] + [100 + i]
            length = 512 * len(blocks) - 100
            row = {"timestamp": i, "input_length": length, "output_length": 2, "hash_ids": blocks}
            file.write(json.dumps(row) + "\n")
    return path


@pytest.mark.skipif(data_folder() is None, reason="the trace is not among the data")
def test_the_trace_is_replayed_with_its_decisions() -> None:
    loaded, idle = trace.settings()
    for setting in (loaded, idle):
        _, record = trace.replay(setting, limit=20)
        assert record.decisions is not None
        assert (record.decisions["kind"] == "admit").sum() == len(record.requests["request"]) == 20
    published = MooncakeTrace(trace.TRACE, limit=20)
    arrivals = sorted(record.requests["arrival_s"].tolist())
    assert arrivals == pytest.approx([50 * request.arrival for request in published])


# ---- beside the real peers


def needs(peer: Peer) -> pytest.MarkDecorator:
    marker = CHECKOUT / ".venv-peers" / peer.name / "INSTALLED"
    return pytest.mark.skipif(not marker.is_file(), reason=f"{peer.name} is not installed")


@pytest.mark.peer
@needs(SGLANG)
def test_sglangs_tree_counts_the_same_hits(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "trace.jsonl", 12)
    arguments = {"trace": str(path), "page_size": 1, "num_tokens": 10**6, "uncomputed": 0}
    peer = SGLANG.run("sglang_cache.py", arguments)
    # Request i >= 2 finds all i // 2 blocks of request i - 2 but its partial last one.
    assert peer["hit_tokens"] == 512 * sum(i // 2 for i in range(2, 12))
    hit_tokens, prompt_tokens = exact.serve_one_at_a_time(MooncakeTrace(path))
    assert (peer["hit_tokens"], peer["prompt_tokens"]) == (hit_tokens, prompt_tokens)


@pytest.mark.peer
@needs(VIDUR)
def test_vidur_simulates_the_same_latencies(tmp_path: Path) -> None:
    workload = simulator.synthetic(128, 1.0)
    simulator.write_vidur_requests(workload, tmp_path / "requests.csv")
    peer = VIDUR.run(
        "vidur_simulator.py",
        {
            "requests": str(tmp_path / "requests.csv"),
            "chunk_size": simulator.CHUNK_SIZE,
            "max_running": simulator.MAX_RUNNING,
            "accelerator": "h100",
            "engine": "vllm",
        },
    )
    served = simulator.simulation(workload).run().record.requests
    e2e = (served["finish_s"] - served["arrival_s"]).mean()
    assert peer["requests"] == 128
    assert peer["e2e_mean_s"] == pytest.approx(e2e, rel=0.01)
