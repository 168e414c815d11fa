"""Attention on a CPU that reads pages in place.

torch has no such attention; gathering the pages first costs more than attending.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from testbed_kernels.cpu_library import library

HEAD_DIM_MULTIPLE = 8
"""Of cpu_prefill.c's tiles."""


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


class QueryRuns(NamedTuple):
    """Runs of query tokens that read the same pages; all on the CPU and contiguous.

    pages: int32, the runs' page ids, run after run. tables: int64[runs], where those of each run
    begin. bounds: int64[runs + 1]; a run's query tokens are bounds[run] to bounds[run + 1] - 1 of
    the others. places: int64[tokens], where each stands among the queries, none twice. firsts,
    ends: int64[tokens], what it reads, as of DecodeRows.
    """

    pages: torch.Tensor
    tables: torch.Tensor
    bounds: torch.Tensor
    places: torch.Tensor
    firsts: torch.Tensor
    ends: torch.Tensor


def supported(pages: torch.Tensor) -> bool:
    """Whether the kernels can read such pages on this machine."""
    return (
        pages.device.type == "cpu"
        and pages.dtype == torch.float32
        and pages.shape[-1] % HEAD_DIM_MULTIPLE == 0
        and library() is not None
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
    tensors = _checked(query, key_pages, value_pages, out, weight)
    _call("testbed_cpu_decode", tensors, rows, len(query), torch.get_num_threads(), scale)


def cpu_prefill(
    query: torch.Tensor,
    key_pages: torch.Tensor,
    value_pages: torch.Tensor,
    runs: QueryRuns,
    *,
    merge: bool,
    scale: float,
    out: torch.Tensor,
    weight: torch.Tensor,
) -> None:
    """Attention of query tokens over the pages of their runs, into their places.

    merge: add to what these tokens have attended to before, as `out` and `weight` tell. Else as of
    cpu_decode, [tokens, ...] for [rows, ...]; head_dim: a multiple of HEAD_DIM_MULTIPLE. A token's
    result depends on nothing but the token.
    """
    tensors = _checked(query, key_pages, value_pages, out, weight)
    if query.shape[-1] % HEAD_DIM_MULTIPLE:
        raise ValueError(f"head_dim={query.shape[-1]}: a multiple of {HEAD_DIM_MULTIPLE} is needed")
    _call("testbed_cpu_prefill", tensors, runs, len(runs.tables), int(merge), scale)


def _checked(
    query: torch.Tensor,
    key_pages: torch.Tensor,
    value_pages: torch.Tensor,
    out: torch.Tensor,
    weight: torch.Tensor,
) -> tuple[torch.Tensor, ...]:
    _, kv_heads, _, head_dim = query.shape
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
    return query, key_pages, value_pages, out, weight


def _call(
    name: str,
    tensors: tuple[torch.Tensor, ...],
    read: DecodeRows | QueryRuns,
    count: int,
    option: int,
    scale: float,
) -> None:
    """count: rows or runs, as of `read`. option: what this kernel alone wants to know."""
    query, key_pages, value_pages, out, weight = tensors
    kernels = library()
    assert kernels is not None, "supported() says whether there are any"
    getattr(kernels, name)(
        *(tensor.data_ptr() for tensor in (query, key_pages, value_pages, *read)),
        *(count, *query.shape[1:], key_pages.shape[1], option),
        scale,
        out.data_ptr(),
        weight.data_ptr(),
    )
