"""How long device work takes: without its launch, and from a cold cache."""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter

import torch

from experiments.gpu.setting import Setting

WARM_UPS = 3
REPEATS = 15
FLUSH_BYTES = 256 * 2**20
"""Written before each run: several times the largest L2 cache."""


def device_seconds(work: Callable[[], object], setting: Setting) -> float:
    """Median seconds of `work` on the device, replayed as a CUDA graph over a cold L2 cache.

    The graph hides Triton's launch, which takes longer than a short kernel does, and the flush
    keeps the device busy until the graph is queued. In a smoke run, the time of one call.
    """
    if setting.smoke:
        began = perf_counter()
        work()
        return perf_counter() - began
    for _ in range(WARM_UPS):
        work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")
    seconds: list[float] = []
    for _ in range(REPEATS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        flush.zero_()
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        seconds.append(begin.elapsed_time(end) / 1e3)
    return median(seconds)
