from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_demo_prints_a_table_and_draws_a_figure(data: Path, tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "experiments.demo"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    for policy in ("fcfs", "lpm", "dfs_weight", "vtc", "dlpm"):
        assert policy in run.stdout
        assert (tmp_path / "results/demo" / policy / "COMPLETE").is_file()
    # Eight rows: every second prompt repeats the one before, all share the first 512 tokens.
    assert "hit" in run.stdout
    for suffix in ("pdf", "png", "csv"):
        assert (tmp_path / f"results/demo/policies.{suffix}").stat().st_size > 0
