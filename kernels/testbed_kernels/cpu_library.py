"""The kernels for CPUs, compiled by the machine's own C compiler when they are first needed."""

from __future__ import annotations

import ctypes
import functools
import os
import subprocess
import tempfile
from pathlib import Path

SOURCES = ("cpu_decode.c", "cpu_prefill.c", "cpu_rms_norm.c", "cpu_rotary.c")
COMPILE = ("-O3", "-march=native", "-ffast-math", "-fopenmp", "-fPIC", "-std=c11", "-c")
# Neither fast-math nor OpenMP when linking: the one would change how the whole process rounds, the
# other would bring a second pool of threads beside torch's.
LINK = ("-shared", "-lm")
POINTER, SIZE = ctypes.c_void_p, ctypes.c_int64


@functools.cache
def library() -> ctypes.CDLL | None:
    """The compiled kernels; None where there is no C compiler or torch's OpenMP does not fit it."""
    with tempfile.TemporaryDirectory() as folder:
        compiler = os.environ.get("CC") or "cc"
        sources = [Path(__file__).with_name(name) for name in SOURCES]
        objects = [str(Path(folder) / f"{source.stem}.o") for source in sources]
        linked = str(Path(folder) / "cpu_kernels.so")
        try:
            for arguments in (
                *([*COMPILE, str(s), "-o", o] for s, o in zip(sources, objects, strict=True)),
                [*objects, *LINK, "-o", linked],
            ):
                subprocess.run([compiler, *arguments], check=True, capture_output=True)
            kernels = ctypes.CDLL(linked)
        except (OSError, subprocess.CalledProcessError):
            return None
    for function, read in ((kernels.testbed_cpu_decode, 4), (kernels.testbed_cpu_prefill, 6)):
        function.argtypes = [
            *[POINTER] * (3 + read), *[SIZE] * 6, ctypes.c_float, POINTER, POINTER
        ]  # fmt: skip
    norm = kernels.testbed_cpu_rms_norm
    norm.argtypes = [POINTER, POINTER, SIZE, SIZE, ctypes.c_float, POINTER]
    kernels.testbed_cpu_rotary.argtypes = [*[POINTER] * 3, *[SIZE] * 5, POINTER]
    return kernels
