"""The engine's benchmarks: what all sides are asked, sessions with drivers, sums of a profile."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from experiments.benchmarks import engine, overhead
from experiments.benchmarks.operator_times import ATTENTION, PRODUCTS, REST, milliseconds_by_part
from experiments.benchmarks.peer_venv import Peer, PeerError


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Where the environment of Peer("fake", ("fake==1",)) is this interpreter."""
    (tmp_path / "fake" / "bin").mkdir(parents=True)
    (tmp_path / "fake" / "bin" / "python").symlink_to(sys.executable)
    (tmp_path / "fake" / "INSTALLED").write_text("fake==1", encoding="utf-8")
    return tmp_path


FAKE = Peer("fake", ("fake==1",))


def driver(folder: Path, body: str) -> str:
    path = folder / "driver.py"
    path.write_text(f"from experiments.benchmarks.peers import session\n{body}", encoding="utf-8")
    return str(path)


def test_a_session_answers_one_request_after_the_other(home: Path) -> None:
    body = (
        "import json, sys\n"
        "print('chatter')\n"
        "factor = json.loads(sys.argv[1])['factor']\n"
        "def answer(request):\n"
        "    print('more chatter')\n"
        "    return {'product': factor * request['n']}\n"
        "session.serve(answer)\n"
    )
    with FAKE.session(driver(home, body), {"factor": 3}, home) as session:
        assert [session.ask(n=n) for n in (2, 5)] == [{"product": 6}, {"product": 15}]


@pytest.mark.parametrize(
    "body",
    [
        "raise SystemExit('the peer broke')\n",
        "session.serve(lambda request: exec('raise SystemExit(\"the peer broke\")'))\n",
    ],
)
def test_a_session_that_ends_is_reported_with_its_output(home: Path, body: str) -> None:
    with (
        pytest.raises(PeerError, match=r"fake exited 1:\n(.*\n)*the peer broke"),
        FAKE.session(driver(home, body), {}, home) as session,
    ):
        session.ask()


def test_all_prompts_begin_alike_and_then_differ() -> None:
    prompts = [request.prompt for request in engine.requests(5, 1000)]
    assert [len(prompt) for prompt in prompts] == [576] * 5
    assert len({tuple(prompt[:512].tolist()) for prompt in prompts}) == 1
    assert len({tuple(prompt[512:].tolist()) for prompt in prompts}) == 5
    assert {request.max_new_tokens for request in engine.requests(5, 1000)} == {32}
    assert max(int(prompt.max()) for prompt in prompts) < 1000


def test_a_smaller_workload_is_the_beginning_of_the_larger() -> None:
    few, many = engine.requests(2, 1000), engine.requests(4, 1000)
    assert [r.prompt.tolist() for r in few] == [r.prompt.tolist() for r in many[:2]]


def test_an_operators_own_time_counts_for_its_part() -> None:
    names = {
        "aten::mm": 1000.0,
        "_C::onednn_mm": 2000.0,
        "aten::index_select": 4000.0,
        "_C::cpu_attention_with_kv_cache": 8000.0,
        "aten::silu": 16000.0,
        "aten::cat": 32000.0,
    }
    averages = [SimpleNamespace(key=k, self_cpu_time_total=us) for k, us in names.items()]
    sums = milliseconds_by_part(averages)
    assert sums == {PRODUCTS: 3.0, ATTENTION: 12.0, REST: 48.0}


def test_without_torch_the_environment_that_has_it_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    for name in [name for name in sys.modules if name.startswith("testbed.engine")]:
        monkeypatch.delitem(sys.modules, name)
    for benchmark in (engine.BENCHMARK, overhead.BENCHMARK):
        with pytest.raises(PeerError, match=r"torch.* is not installed.*make test-engine"):
            benchmark.run()
