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
    lines = run.stdout.splitlines()
    for policy in ("fcfs", "lpm", "dfs_weight", "vtc", "dlpm", "locality_fair"):
        (row,) = (line.split() for line in lines if line.startswith(f"{policy} "))
        # Six prompts of 700 tokens, a second apart: they share their first 512, and every second
        # one repeats its predecessor (capped at 699, in pages of 16).
        assert row[1].rstrip("*") == f"{(3 * 688 + 2 * 512) / (6 * 700):.3f}"
        assert (tmp_path / f"results/demo/{policy}/COMPLETE").is_file()
    for suffix in ("pdf", "png", "csv"):
        assert (tmp_path / f"results/demo/policies.{suffix}").stat().st_size > 0
