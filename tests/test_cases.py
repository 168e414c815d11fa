"""The exact cases of tests/cases pass, and their runner notices what is wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from testbed.workloads import MooncakeTrace, find_data_file
from tests.cases.__main__ import main
from tests.cases.folder import run_file
from tests.cases.serial import UNLIMITED, build_scheduler, serve_in_order

CASES = Path(__file__).resolve().parent / "cases"
CONVERSATION = "mooncake/conversation_trace.jsonl"
NUM_INSTANCES = {"order": 27, "timed": 4, "fair": 7, "template": 6, "lesson": 12, "traces": 12}
MAY_BE_SKIPPED = {
    f"best_any_order_lru.{name}" for name in ("worst", "orders", "optimal_orders", "mean")
}


def require_trace() -> None:
    try:
        find_data_file(CONVERSATION)
    except FileNotFoundError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("kind", NUM_INSTANCES)
def test_the_cases_pass(kind: str) -> None:
    if kind == "traces":
        require_trace()
    outcomes = list(run_file(CASES / f"{kind}.json"))
    failures = [f"{one.name} {failure}" for one in outcomes for failure in one.failures]
    assert failures == []
    assert len(outcomes) == NUM_INSTANCES[kind]
    assert all(one.checked for one in outcomes)
    assert {field for one in outcomes for field, _ in one.skipped} <= MAY_BE_SKIPPED


def test_every_token_of_the_conversation_trace_at_page_size_1() -> None:
    require_trace()
    trace = MooncakeTrace(CONVERSATION)
    assert sum(len(request.prompt) for request in trace) == 144_793_823
    prompts = (replace(request, max_new_tokens=1) for request in trace)
    served = serve_in_order(build_scheduler(UNLIMITED), prompts)
    assert sum(served.hits) == 54_098_411


def instance_of(kind: str) -> dict[str, Any]:
    content = json.loads((CASES / f"{kind}.json").read_text(encoding="utf-8"))
    instances = content["instances"] if isinstance(content, dict) else content
    return deepcopy(instances[0])


def put(folder: Path, content: Any, name: str = "mine.json") -> None:
    text = content if isinstance(content, str) else json.dumps(content)
    (folder / name).write_text(text, encoding="utf-8")


def lines_of(folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[str]]:
    code = main([str(folder)])
    return code, capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(
    ("kind", "path", "label"),
    [
        ("order", "expected.fcfs_token.lfu.evicted_tokens", "O01"),
        ("order", "expected.fcfs_token.belady.hits", "O01"),
        ("order", "expected.fcfs_block_lru.b1.hits", "O01"),
        ("order", "expected.best_any_order_lru.optimal_orders", "O01"),
        ("order", "expected.batch_inf.lpm_dedupe_k2.hits", "O01"),
        ("timed", "expected.lpm.makespan", "T01"),
        ("timed", "expected.optimum_non_idling.sum_ttft", "T01"),
        ("fair", "expected.dlpm.refill_rounds", "F01"),
        ("template", "hits_by_order.0132", "P01"),
        ("lesson", "fcfs", "#0 scramble=False budget_blocks=180"),
    ],
)
def test_a_wrong_value_is_named_with_what_came_out(
    kind: str, path: str, label: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    instance = instance_of(kind)
    inner = instance
    *parents, field = path.split(".")
    for parent in parents:
        inner = inner[parent]
    right = inner[field]
    inner[field] += 1
    put(tmp_path, [instance])
    code, lines = lines_of(tmp_path, capsys)
    assert code == 1
    named = path.removeprefix("expected.")
    assert lines[0].startswith(f"mine.json {label} {named}: expected {right + 1}, got {right}")
    assert lines[-1] == "0 passed, 1 failed"


def test_an_order_that_is_not_the_best_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    instance = instance_of("order")
    # Arrival order alternates between two groups that do not fit together: 0 hits.
    instance["expected"] = {"best_any_order_lru": {"best": 16, "a_best_order": [0, 1, 2, 3, 4, 5]}}
    put(tmp_path, [instance])
    code, lines = lines_of(tmp_path, capsys)
    assert code == 1
    assert lines[0].endswith("[0, 1, 2, 3, 4, 5], got [0, 1, 2, 3, 4, 5] with 0 hits")


def test_warm_prompts_are_served_first_and_not_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # 1 2 3 and 4 5 fill the cache; 1 2 9 hits 2 and evicts 3; 4 5 hits 2.
    summary = {"hits": 4, "per_request": [2, 2], "evicted_tokens": 1}
    instance = {
        "id": "warm",
        "prompts": [[1, 2, 9], [4, 5]],
        "capacity": 5,
        "precedence": [[0, 1]],
        "warm": [[1, 2, 3], [4, 5]],
        "expected": {
            "total_tokens": 5,
            "upper_bound_cold": 0,
            "fcfs_token": {"lru": summary, "fifo": summary, "belady": summary},
            "fcfs_hits_cap1": 3,
        },
    }
    put(tmp_path, {"instances": [instance]})
    assert lines_of(tmp_path, capsys) == (0, ["1 passed, 0 failed"])


def test_a_policy_that_does_not_exist_is_skipped_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    instances = [instance_of("timed"), instance_of("fair")]
    for instance in instances:
        instance["expected"]["clairvoyant"] = {"order": []}
    instances.append({**instance_of("fair"), "expected": {"clairvoyant": {"order": []}}})
    put(tmp_path, instances)
    code, lines = lines_of(tmp_path, capsys)
    assert code == 0
    assert "skipped in 3 instances: clairvoyant (no such policy)" in lines
    assert lines[-1] == "2 passed, 0 failed"


def test_a_missing_data_file_is_skipped_by_name_and_does_not_pass(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TESTBED_DATA", str(tmp_path))
    put(tmp_path, [instance_of("traces")])
    code, lines = lines_of(tmp_path, capsys)
    assert code == 0
    assert lines[0].startswith(f"skipped in 1 instances: every field ({CONVERSATION}: no such file")
    assert lines[1:] == ["1 skipped", "0 passed, 0 failed"]


@pytest.mark.parametrize(
    ("name", "content", "line"),
    [
        ("mine.json", "{", "mine.json cannot be read as JSON: "),
        ("mine.json", "3", "mine.json a list of instances, or an object with such a list, "),
        ("mine.json", [], "mine.json a list of instances, or an object with such a list, "),
        ("mine.json", [4], "mine.json #0 an instance is an object"),
        ("mine.json", [{"id": "X", "a": 1}], "mine.json X no known kind of case has its fields "),
        ("order.json", [{"id": "X"}], "order.json X prompts: it is missing; a list of prompts "),
        (
            "mine.json",
            [{"scramble": True, "budget_blocks": 0}],
            "mine.json #0 scramble=True budget_blocks=0 budget_blocks: 0; a whole number ",
        ),
        (
            "mine.json",
            [{"scramble": True, "budget_blocks": 9}],
            "mine.json #0 scramble=True budget_blocks=9 it expects nothing",
        ),
        (
            "mine.json",
            [{"id": "T", "capacity": 2, "requests": [{"arrival": 0}], "expected": {}}],
            'mine.json T requests: [{"arrival": 0}]; a list of requests with arrival and prompt ',
        ),
        (
            "mine.json",
            [
                {
                    **{"id": "P", "tokens": [2, 3], "cardinality": [1], "rows": [[0]]},
                    "hits_by_order": {"0": 0},
                }
            ],
            "mine.json P ValueError: rows: one value for each of 2 components is needed",
        ),
    ],
)
def test_what_is_no_case_fails_with_a_clear_line(
    name: str, content: Any, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(tmp_path, content, name)
    code, lines = lines_of(tmp_path, capsys)
    assert code == 1
    assert lines[0].startswith(line)
    assert lines[-1] == "0 passed, 1 failed"


def test_a_folder_without_cases_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, lines = lines_of(tmp_path / "nowhere", capsys)
    assert code == 1
    assert lines[0].endswith("no such folder, or no *.json file in it")


def test_the_command_runs_a_folder_of_ones_own(tmp_path: Path) -> None:
    right, wrong = instance_of("template"), instance_of("template")
    wrong["best"] = 105
    put(tmp_path, [right], "a.json")
    put(tmp_path, [wrong], "b.json")
    run = subprocess.run(
        [sys.executable, "-m", "tests.cases", str(tmp_path)],
        cwd=CASES.parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 1
    expected = ["b.json P01 best: expected 105, got 104", "1 passed, 1 failed"]
    assert run.stdout.splitlines() == expected
