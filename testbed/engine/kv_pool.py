"""KVPool: the tensors behind the core's page ids."""

from __future__ import annotations

import torch

from testbed.engine.device_memory import free_bytes, gib
from testbed.engine.model import Model


class KVPool:
    """Keys and values of every page, [num_pages + 1, page_size, kv_heads, head_dim] for each layer.

    Page `num_pages` is never handed out: page tables are padded with it, and the padding rows of
    captured steps write to it. It holds nothing but finite numbers.
    MemoryError with the numbers if the pool does not fit what is free.
    """

    def __init__(self, model: Model, num_pages: int, page_size: int) -> None:
        bytes_per_page = model.kv_bytes_per_token * page_size
        needed = bytes_per_page * (num_pages + 1)
        free = free_bytes(model.device)
        if needed > free:
            raise MemoryError(
                f"{num_pages} pages of {page_size} tokens of {model.name} need "
                f"{gib(needed)} ({model.kv_bytes_per_token} bytes a token), "
                f"{gib(free)} are free on {model.device}: "
                f"{max(0, free // bytes_per_page - 1)} pages fit"
            )
        self.num_pages = num_pages
        self.page_size = page_size
        self.padding_page = num_pages
        shape = (num_pages + 1, page_size, model.num_kv_heads, model.head_dim)
        # Zeros, as a padded or masked slot may hold anything finite but no NaN.
        self.keys, self.values = (
            [
                torch.zeros(shape, dtype=model.dtype, device=model.device)
                for _ in range(model.num_layers)
            ]
            for _ in range(2)
        )

    def poison(self, pages: torch.Tensor | None = None) -> None:
        """Fill pages (int64 ids, all if None) with NaN, so that reading a stale slot shows."""
        if pages is None:
            pages = torch.arange(self.num_pages)
        for tensor in (*self.keys, *self.values):
            tensor[pages.to(tensor.device)] = torch.nan


def pages_that_fit(model: Model, page_size: int, share: float = 0.9) -> int:
    """Pages that fit into `share` of the free memory of the model's device.

    MemoryError with the numbers if not even one does.
    """
    free = free_bytes(model.device)
    bytes_per_page = model.kv_bytes_per_token * page_size
    pages = int(free * share) // bytes_per_page - 1
    if pages < 1:
        raise MemoryError(
            f"no page of {page_size} tokens ({bytes_per_page} bytes) of {model.name} fits into "
            f"{share:.0%} of the {gib(free)} that are free on {model.device}"
        )
    return pages
