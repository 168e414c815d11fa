"""PagedBatch: which sequences run this step, how long they are, where their pages lie."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class PagedBatch:
    """A packed batch over a paged KV cache; the same for every layer of a step.

    query_starts: int32[sequences + 1]; the new tokens of sequence i are rows query_starts[i] to
        query_starts[i + 1] of the packed query, key and value. May be empty for a sequence.
    kv_lens: int32[sequences]; tokens of the sequence, the new ones included, so that the new ones
        have the last positions. 0 marks a padding row: nothing is written, its output is zero.
    page_table: int32[sequences, pages]; entry j of row i is the page of its positions from
        j * page_size on. Entries past the sequence's length are never read.

    All on one device, rows of page_table contiguous. ValueError names the tensor that is not so.
    """

    query_starts: torch.Tensor
    kv_lens: torch.Tensor
    page_table: torch.Tensor

    def __post_init__(self) -> None:
        (sequences,) = self.kv_lens.shape
        expected = {
            "query_starts": (sequences + 1,),
            "kv_lens": (sequences,),
            "page_table": (sequences, *self.page_table.shape[1:2]),
        }
        for name, shape in expected.items():
            tensor: torch.Tensor = getattr(self, name)
            if tensor.dtype != torch.int32 or tuple(tensor.shape) != shape:
                raise ValueError(
                    f"{name}: {tensor.dtype}{list(tensor.shape)}; int32{list(shape)} is needed"
                )
            if tensor.device != self.kv_lens.device:
                raise ValueError(f"{name}: on {tensor.device}, kv_lens on {self.kv_lens.device}")
            if tensor.stride(-1) != 1:
                raise ValueError(f"{name}: its last dimension is strided; call contiguous() first")

    @property
    def num_sequences(self) -> int:
        """Sequences, padding rows included."""
        return self.kv_lens.shape[0]


def check_pages(
    packed: torch.Tensor, key_pages: torch.Tensor, value_pages: torch.Tensor, name: str
) -> None:
    """ValueError unless pages [pages, page_size, kv_heads, head_dim] fit packed [tokens, heads,
    head_dim], which errors call `name`: dtype, device, head_dim, heads in whole groups, and equal
    strides of both page tensors with contiguous head_dim."""
    if key_pages.ndim != 4 or key_pages.shape != value_pages.shape:
        raise ValueError(
            f"key_pages {list(key_pages.shape)}, value_pages {list(value_pages.shape)}: "
            "both must be [pages, page_size, kv_heads, head_dim]"
        )
    if key_pages.stride() != value_pages.stride() or key_pages.stride(3) != 1:
        raise ValueError(
            f"key_pages strides {key_pages.stride()}, value_pages strides {value_pages.stride()}: "
            "they must be equal, and 1 in the last dimension"
        )
    _, _, kv_heads, head_dim = key_pages.shape
    if packed.ndim != 3 or packed.shape[2] != head_dim or packed.shape[1] % kv_heads:
        raise ValueError(
            f"{name}: {list(packed.shape)}; [tokens, a multiple of {kv_heads} heads, {head_dim}] "
            "is needed"
        )
    if packed.stride(2) != 1:
        raise ValueError(f"{name}: head_dim is strided; call contiguous() first")
    for tensor in (key_pages, value_pages):
        if (tensor.dtype, tensor.device) != (packed.dtype, packed.device):
            raise ValueError(
                f"{name} is {packed.dtype} on {packed.device}, the pages are {tensor.dtype} on "
                f"{tensor.device}; they must agree"
            )
