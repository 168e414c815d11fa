"""Freed memory stays with the process where glibc hands it out."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, platform
from pathlib import Path
from testbed.engine.host_memory import keep_freed_memory

library = ctypes.CDLL(None)
library.malloc.restype = ctypes.c_void_p
library.free.argtypes = [ctypes.c_void_p]

def resident_mib():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20

def left_after_free():
    before = resident_mib()
    block = library.malloc(24 * 2**20)
    ctypes.memset(block, 1, 24 * 2**20)
    library.free(block)
    return resident_mib() - before

print(platform.libc_ver()[0] or "other", left_after_free(), end=" ")
keep_freed_memory()
print(left_after_free())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_freed_memory_stays() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    library, before, after = done.stdout.split()
    if library != "glibc":
        pytest.skip(f"the C library is {library}")
    assert float(before) < 4
    assert float(after) > 20
