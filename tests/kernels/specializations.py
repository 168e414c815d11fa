"""How often each kernel would be compiled for batches of all sizes: `python -m` prints it as JSON.

A process of its own, as Triton's interpreter replaces what is asked here.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from typing import Any

import numpy as np
import torch
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import make_backend
from triton.runtime.jit import JITFunction, create_function_from_signature

from testbed_kernels.batch import PagedBatch
from testbed_kernels.decode import paged_decode
from testbed_kernels.kv_write import write_kv
from testbed_kernels.prefill import paged_prefill
from testbed_kernels.shared_prefix import SharedPrefixes, cut_segments, shared_launch

HEADS, KV_HEADS, HEAD_DIM, PAGE = 8, 2, 64, 16
# (sequences, pages of each, parts): 1, multiples of 16, and others.
SIZES = ((1, 1, 1), (1, 2, 2), (16, 16, 16), (7, 32, 1), (32, 5, 3), (3, 17, 2), (16, 3, 1))


def batch_of(sequences: int, pages: int, before: int) -> PagedBatch:
    """A decode batch whose tensors lie back to back, after so many other numbers."""
    starts = torch.arange(sequences + 1)
    lengths = torch.full((sequences,), pages * PAGE)
    table = torch.zeros(sequences * pages, dtype=torch.int64)
    packed = torch.cat((torch.zeros(before), starts, lengths, table)).int()
    sizes = [before, sequences + 1, sequences, sequences * pages]
    _, starts, lengths, table = torch.split(packed, sizes)
    return PagedBatch(starts, lengths, table.view(sequences, pages))


def main() -> None:
    """Launch everything at every size; nothing runs."""
    backend: Any = make_backend(GPUTarget("cuda", 90, 32))
    seen: defaultdict[str, set[str]] = defaultdict(set)

    def note(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        bind = create_function_from_signature(self.signature, self.params, backend)
        seen[self.fn.__name__].add(str(bind(*args, **kwargs)[1:]))

    JITFunction.run = note
    pool = torch.zeros(2, 4, PAGE, KV_HEADS, HEAD_DIM)
    for before, (sequences, pages, parts) in enumerate(SIZES):
        batch = batch_of(sequences, pages, before)
        query = torch.zeros(sequences, HEADS, HEAD_DIM)
        key = torch.zeros(sequences, KV_HEADS, HEAD_DIM)
        write_kv(key, key, *pool, batch)
        paged_prefill(query, *pool, batch, scale=1.0)
        paged_decode(query, *pool, batch, scale=1.0, splits=parts)
        if sequences > 1 and pages > 1:
            cut = cut_segments(
                [(0, pages - 1, np.arange(sequences))],
                sequences,
                page_size=PAGE,
                group=HEADS // KV_HEADS,
                block_m=shared_launch(query).block_m,
                programs=4,
            )
            shared = SharedPrefixes.on_device(cut, query.device)
            paged_decode(query, *pool, batch, scale=1.0, splits=parts, shared=shared)
    json.dump({name: len(kinds) for name, kinds in seen.items()}, sys.stdout)


if __name__ == "__main__":
    main()
