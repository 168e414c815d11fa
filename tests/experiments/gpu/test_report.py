"""The table of targets and the figures, from records written by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from experiments.gpu.report import main, report, targets


def parts() -> dict[str, Any]:
    step = {"rows": 64, "context": 4096, "chunk": 0, "seconds": 0.03}
    step |= {"graph_seconds": 0.015, "memory_floor_s": 0.012}
    return {
        "kernels": {
            "decode": [{"share_of_copy": 0.80}, {"share_of_copy": 0.1}],
            "prefill": [{"share_of_matmul": 0.45}],
        },
        "steps": {"models": {"llama-8b": {"rows": [{**step, "rows": 1}, step]}}},
        "throughput": {"ratio": None},
        "correctness": {"wrong": 0},
    }


def write(folder: Path, records: dict[str, Any]) -> None:
    for name, record in records.items():
        (folder / f"{name}.json").write_text(json.dumps(record))


def test_every_target_stands_beside_what_was_measured() -> None:
    lines = [" ".join(str(line).split()) for line in targets(parts())]
    assert "80.0% at least 75.0%: reached" in lines[0]
    assert "45.0% at least 50.0%: MISSED" in lines[1]
    assert "1.25 at most 1.30: reached" in lines[2]
    assert "not measured at least 1.00" in lines[3]
    assert "0 at most 0: reached" in lines[4]
    assert "tokens: wrong results not measured" in lines[5]


def test_figures_are_drawn_of_what_there_is(tmp_path: Path) -> None:
    write(tmp_path, parts())
    lines = report(tmp_path)
    assert (tmp_path / "steps.pdf").stat().st_size > 0
    assert (tmp_path / "steps.png").stat().st_size > 0
    assert not (tmp_path / "sharing.pdf").exists()
    assert f"wrote {tmp_path / 'steps.pdf'}" in lines


def test_a_smoke_run_meets_no_target(tmp_path: Path) -> None:
    write(tmp_path, {"kernels": {**parts()["kernels"], "smoke": True}})
    lines = report(tmp_path)
    assert lines[0].startswith("A smoke run")
    assert not any("reached" in line or "MISSED" in line for line in lines)


def test_a_part_that_failed_is_named(tmp_path: Path) -> None:
    write(tmp_path, {"runs": {"failed": "MemoryError: 3 pages fit"}})
    assert "runs: FAILED: MemoryError: 3 pages fit" in report(tmp_path)


def test_a_part_that_was_cut_short_is_named_and_shows_what_it_had(tmp_path: Path) -> None:
    write(tmp_path, {"kernels": {**parts()["kernels"], "finished": False, "seconds": 31.7}})
    lines = report(tmp_path)
    assert "kernels: cut short after 32 s" in lines
    assert "80.0%" in lines[0]


def test_an_empty_folder_says_so(tmp_path: Path, capsys: Any) -> None:
    assert main([str(tmp_path)]) == 0
    assert "no results in it" in capsys.readouterr().out
