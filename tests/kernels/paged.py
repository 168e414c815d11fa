"""Random paged batches whose right answer is known from dense float64 copies, never from pages."""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from testbed_kernels.batch import PagedBatch

DEVICE = "cpu" if os.environ["TRITON_INTERPRET"] == "1" else "cuda"
DTYPES = [torch.float32, torch.float16]
if DEVICE == "cuda":
    # Triton's interpreter multiplies bfloat16 tiles as if their bits were integers.
    DTYPES.append(torch.bfloat16)
TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.5e-2}
"""Absolute, on outputs of order one: a few roundings of the dtype."""


@dataclass
class PagedCase:
    """A batch, its tensors, and each sequence's own keys and values [kv_len, kv_heads, head_dim].

    Pages are dealt in random order. Every slot that no sequence owns is NaN, and every entry of
    the page table past a sequence's end points to a page of NaN.
    """

    batch: PagedBatch
    query: torch.Tensor
    key_pages: torch.Tensor
    value_pages: torch.Tensor
    keys: list[torch.Tensor]
    values: list[torch.Tensor]
    scale: float

    def expected(self, sliding_window: int | None = None) -> npt.NDArray[np.float64]:
        """softmax(q k) v over the keys at or before each query's position, one row at a time."""
        out = np.zeros(tuple(self.query.shape))
        starts = self.batch.query_starts.tolist()
        group = self.query.shape[1] // self.key_pages.shape[2]
        for index, kv_len in enumerate(self.batch.kv_lens.tolist()):
            for row in range(starts[index], starts[index + 1] if kv_len else starts[index]):
                end = kv_len - (starts[index + 1] - row) + 1
                first = 0 if sliding_window is None else max(0, end - sliding_window)
                for head in range(self.query.shape[1]):
                    query = self.query[row, head].double().cpu().numpy()
                    keys = self.keys[index][first:end, head // group].double().cpu().numpy()
                    values = self.values[index][first:end, head // group].double().cpu().numpy()
                    scores = keys @ query * self.scale
                    weights = np.exp(scores - scores.max())
                    out[row, head] = weights @ values / weights.sum()
        return out


def make_case(
    lengths: list[tuple[int, int]],
    *,
    heads: tuple[int, int] = (4, 2),
    head_dim: int = 64,
    page_size: int = 16,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> PagedCase:
    """A case of (query tokens, KV length) pairs, for (query, KV) heads."""
    rng = np.random.default_rng(seed)
    num_heads, kv_heads = heads

    def normal(*shape: int) -> torch.Tensor:
        return torch.from_numpy(rng.standard_normal(shape)).to(DEVICE, dtype)

    counts = [-(-kv_len // page_size) for _, kv_len in lengths]
    num_pages = sum(counts) + 3
    order = rng.permutation(num_pages).tolist()
    poison = order.pop()
    table = np.full((len(lengths), max(counts) + 2), poison)
    key_pages = torch.full((num_pages, page_size, kv_heads, head_dim), torch.nan, dtype=dtype)
    key_pages = key_pages.to(DEVICE)
    value_pages = key_pages.clone()
    keys = [normal(kv_len, kv_heads, head_dim) for _, kv_len in lengths]
    values = [normal(kv_len, kv_heads, head_dim) for _, kv_len in lengths]
    for index, count in enumerate(counts):
        for page in range(count):
            table[index, page] = order.pop()
            tokens = slice(page * page_size, (page + 1) * page_size)
            for pages, dense in ((key_pages, keys[index]), (value_pages, values[index])):
                pages[table[index, page], : len(dense[tokens])] = dense[tokens]
    starts = np.cumsum([0, *(count for count, _ in lengths)])
    batch = PagedBatch(
        *(
            torch.from_numpy(array).to(DEVICE, torch.int32)
            for array in (starts, np.array([kv_len for _, kv_len in lengths]), table)
        )
    )
    query = normal(int(starts[-1]), num_heads, head_dim)
    return PagedCase(batch, query, key_pages, value_pages, keys, values, head_dim**-0.5)


def assert_close(actual: torch.Tensor, expected: npt.NDArray[np.float64]) -> None:
    """Equal within the dtype's tolerance; NaN anywhere fails."""
    np.testing.assert_allclose(
        actual.double().cpu().numpy(), expected, rtol=0, atol=TOLERANCE[actual.dtype]
    )


def random_shape(rng: np.random.Generator) -> dict[str, object]:
    """make_case's keywords: a page size, heads in groups, a head_dim and a dtype."""
    group, kv_heads = int(rng.choice([1, 2, 3, 7, 20])), int(rng.integers(1, 3))
    return {
        "heads": (group * kv_heads, kv_heads),
        "head_dim": int(rng.choice([16, 64, 80, 96, 128, 256])),
        "page_size": int(rng.choice([1, 3, 16, 32, 100])),
        "dtype": DTYPES[rng.integers(len(DTYPES))],
    }
