"""cpu_decode: decode attention on a CPU, compiled by the machine's own C compiler.

torch has no attention that reads pages in place; gathering them first costs more than attending.
"""

from __future__ import annotations

import ctypes
import functools
import os
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

SOURCE = Path(__file__).with_suffix(".c")
COMPILE = ("-O3", "-march=native", "-ffast-math", "-fopenmp", "-fPIC", "-std=c11", "-c")
# Neither fast-math nor OpenMP when linking: the one would change how the whole process rounds, the
# other would bring a second pool of threads beside torch's.
LINK = ("-shared", "-lm")


class DecodeRows(NamedTuple):
    """What each row reads; the same for every layer of a step, all on the CPU and contiguous.

    pages: int32, the rows' page ids, row after row. tables: int64[rows], where those of each row
    begin. firsts, ends: int64[rows]; the row reads the tokens first to end - 1, at least one,
    counted from its first page on.
    """

    pages: torch.Tensor
    tables: torch.Tensor
    firsts: torch.Tensor
    ends: torch.Tensor


@functools.cache
def decode_function() -> Callable[..., None] | None:
    """The compiled kernel; None where there is no C compiler or torch's OpenMP does not fit it."""
    with tempfile.TemporaryDirectory() as folder:
        compiled, library = Path(folder) / "decode.o", Path(folder) / "decode.so"
        compiler = os.environ.get("CC") or "cc"
        try:
            for arguments in (
                [*COMPILE, str(SOURCE), "-o", str(compiled)],
                [str(compiled), *LINK, "-o", str(library)],
            ):
                subprocess.run([compiler, *arguments], check=True, capture_output=True)
            function: Callable[..., None] = ctypes.CDLL(str(library)).testbed_cpu_decode
        except (OSError, subprocess.CalledProcessError):
            return None
    return function


def supported(pages: torch.Tensor) -> bool:
    """Whether cpu_decode can read such pages on this machine."""
    return (
        pages.device.type == "cpu"
        and pages.dtype == torch.float32
        and decode_function() is not None
    )


def cpu_decode(
    query: torch.Tensor,
    key_pages: torch.Tensor,
    value_pages: torch.Tensor,
    rows: DecodeRows,
    *,
    scale: float,
    out: torch.Tensor,
    weight: torch.Tensor,
) -> None:
    """Attention of one query token a row over the row's pages, into `out` and `weight`.

    query, out: [rows, kv_heads, group, head_dim]. weight: [rows, kv_heads, group], the log-sum-exp
    of the scores. key_pages, value_pages: [pages, page_size, kv_heads, head_dim]. All float32 on
    the CPU and contiguous, else ValueError. A row's result depends on nothing but the row.
    """
    count, kv_heads, group, head_dim = query.shape
    _, page_size, *_ = key_pages.shape
    shapes = {
        "query": (query, query.shape),
        "key_pages": (key_pages, (*key_pages.shape[:2], kv_heads, head_dim)),
        "value_pages": (value_pages, key_pages.shape),
        "out": (out, query.shape),
        "weight": (weight, query.shape[:3]),
    }
    for name, (tensor, shape) in shapes.items():
        if tensor.shape != shape or tensor.dtype != torch.float32 or not tensor.is_contiguous():
            raise ValueError(
                f"{name}: {tensor.dtype}{list(tensor.shape)} with strides {tensor.stride()}; "
                f"float32{list(shape)}, contiguous, is needed"
            )
    function = decode_function()
    assert function is not None, "supported() says whether there is one"
    sizes = (count, kv_heads, group, head_dim, page_size, torch.get_num_threads())
    function(
        *(_pointer(tensor) for tensor in (query, key_pages, value_pages, *rows)),
        *(ctypes.c_int64(size) for size in sizes),
        ctypes.c_float(scale),
        _pointer(out),
        _pointer(weight),
    )


def _pointer(tensor: torch.Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())
