"""Random paged batches on the device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from testbed_kernels.batch import PagedBatch
from testbed_kernels.launch import cores_of
from testbed_kernels.shared_prefix import (
    PROGRAMS_PER_CORE,
    SharedPrefixes,
    cut_segments,
    shared_launch,
)


@dataclass(frozen=True)
class Heads:
    """query: query heads; kv: KV heads; dim: head_dim."""

    query: int
    kv: int
    dim: int


LLAMA_8B = Heads(32, 8, 128)
LLAMA_1B = Heads(32, 8, 64)
TINY = Heads(4, 2, 64)


@dataclass(frozen=True)
class Inputs:
    """A batch with every sequence's new tokens, and a pool whose unowned slots are NaN.

    query, key, value: the new tokens'. The pool holds all of the sequences' tokens already.
    """

    batch: PagedBatch
    query: torch.Tensor
    key_pages: torch.Tensor
    value_pages: torch.Tensor

    @property
    def scale(self) -> float:
        return float(self.query.shape[2] ** -0.5)


def make_inputs(
    lengths: list[tuple[int, int]],
    heads: Heads,
    device: torch.device,
    *,
    page_size: int = 16,
    dtype: torch.dtype = torch.bfloat16,
    seed: int = 0,
) -> Inputs:
    """Inputs of (new tokens, KV length) pairs; pages lie in random order."""
    generator = torch.Generator(device).manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device=device, dtype=dtype)

    counts = [-(-kv_len // page_size) for _, kv_len in lengths]
    num_pages = sum(counts) + 1
    order = torch.randperm(num_pages, generator=generator, device=device).int()
    table = order[-1].repeat(len(lengths), max(counts) + 1)
    pool = (num_pages, page_size, heads.kv, heads.dim)
    key_pages, value_pages = normal(*pool), normal(*pool)
    key_pages[order[-1]] = torch.nan
    value_pages[order[-1]] = torch.nan
    first = 0
    for row, (count, (_, kv_len)) in enumerate(zip(counts, lengths, strict=True)):
        table[row, :count] = order[first : first + count]
        used = kv_len - (count - 1) * page_size
        key_pages[table[row, count - 1], used:] = torch.nan
        value_pages[table[row, count - 1], used:] = torch.nan
        first += count
    new_tokens = torch.tensor([0, *(new for new, _ in lengths)], device=device)
    batch = PagedBatch(
        new_tokens.cumsum(0).int(),
        torch.tensor([kv_len for _, kv_len in lengths], device=device).int(),
        table.contiguous(),
    )
    query = normal(int(new_tokens.sum()), heads.query, heads.dim)
    return Inputs(batch, query, key_pages, value_pages)


def share_pages(inputs: Inputs, tokens: int) -> SharedPrefixes:
    """Let all sequences of a decode batch begin with the first one's pages, for so many tokens.

    Changes the page table in place; returns what paged_decode must know of it.
    """
    page_size, kv_heads = inputs.key_pages.shape[1:3]
    table = inputs.batch.page_table
    pages = tokens // page_size
    table[1:, :pages] = table[0, :pages]
    launch = shared_launch(inputs.query)
    sequences = inputs.batch.num_sequences
    cut = cut_segments(
        [(0, pages, np.arange(sequences))],
        sequences,
        page_size=page_size,
        group=inputs.query.shape[1] // kv_heads,
        block_m=launch.block_m,
        programs=PROGRAMS_PER_CORE * cores_of(table.device) // kv_heads,
    )
    return SharedPrefixes.on_device(cut, table.device)
