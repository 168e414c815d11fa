"""A kernel compiled in the middle of a run would be measured as a slow step."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_steps_of_all_sizes_run_the_same_kernels() -> None:
    env = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'kernels'}"}
    env.pop("TRITON_INTERPRET", None)
    command = [sys.executable, "-m", "tests.kernels.specializations"]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    # Of decode: a sequence in one part, in several, and beside shared pages; of merge the latter.
    assert json.loads(done.stdout) == {
        "decode_kernel": 3,
        "merge_kernel": 2,
        "shared_kernel": 1,
        "prefill_kernel": 1,
        "kv_write_kernel": 1,
    }
