"""Ahead-of-time compilation: nothing spills, shared memory fits, tensor cores are used."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import triton

import testbed_kernels

COMPILERS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
pytestmark = pytest.mark.skipif(
    not (COMPILERS / "cuobjdump").exists(), reason="this Triton ships no cuobjdump"
)


def compile_check(cache: Path, *arguments: str) -> list[str]:
    """Lines of the tool's report; in a process of its own, as the interpreter bars the compiler."""
    env = dict(os.environ, TRITON_CACHE_DIR=str(cache))
    env["PYTHONPATH"] = str(Path(testbed_kernels.__file__).parent.parent)
    env.pop("TRITON_INTERPRET", None)
    command = [sys.executable, "-m", "testbed_kernels.compile_check", *arguments]
    run = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout.splitlines()


@pytest.mark.parametrize(("arch", "instruction"), [("sm_80", "mma"), ("sm_90", "wgmma")])
def test_the_common_case_fits_and_runs_on_tensor_cores(
    arch: str, instruction: str, tmp_path: Path
) -> None:
    arguments = ("--archs", arch, "--head-dims", "128", "--dtypes", "bf16", "--geometries", "1")
    lines = [line.split() for line in compile_check(tmp_path, *arguments)]
    assert [line[1] for line in lines] == [
        "decode", "whole_decode", "merge", "suffix", "suffix_merge", "shared", "prefill", "kv_write"
    ]  # fmt: skip
    counts = [dict(zip(line[1:], line, strict=False)) for line in lines]
    assert int(counts[0]["mma"]) > 0
    for index in (5, 6):
        assert int(counts[index][instruction]) > 0


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_every_committed_launch_fits(arch: str, tmp_path: Path) -> None:
    # 5 head_dims x 3 dtypes x (two geometries of 8 kernels and, with a window, one of 5).
    assert len(compile_check(tmp_path, "--archs", arch)) == 315
