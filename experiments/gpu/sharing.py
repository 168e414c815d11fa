"""Decode attention over a shared prefix, read once against read by each sequence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from experiments.gpu.inputs import LLAMA_8B, TINY, Heads, make_inputs, share_pages
from experiments.gpu.setting import Setting
from experiments.gpu.timing import device_seconds
from testbed_kernels.decode import paged_decode
from testbed_kernels.shared_prefix import SharedPrefixes

SUFFIX_TOKENS = 128
SHAPES = tuple(
    (sequences, prefix)
    for prefix in (512, 2048, 4096, 8192, 32_768)
    for sequences in (4, 16, 64, 128)
)
"""(sequences, tokens that they share), in the order of the time that they take."""


def row(setting: Setting, heads: Heads, sequences: int, prefix: int) -> dict[str, Any]:
    """Seconds of both ways, and the bytes that sharing spares.

    The shared pages of all sequences but the first are allocated as well, and left alone.
    """
    suffix = setting.size(SUFFIX_TOKENS, 5)
    lengths = [(1, prefix + suffix)] * sequences
    inputs = make_inputs(lengths, heads, setting.device, dtype=setting.dtype)
    shared = share_pages(inputs, prefix)

    def decode(way: SharedPrefixes | None) -> torch.Tensor:
        return paged_decode(
            inputs.query, inputs.key_pages, inputs.value_pages, inputs.batch,
            scale=inputs.scale, shared=way,
        )  # fmt: skip

    difference = float((decode(shared).float() - decode(None).float()).abs().max())
    apart = device_seconds(lambda: decode(None), setting)
    once = device_seconds(lambda: decode(shared), setting)
    saved = (sequences - 1) * prefix * 2 * heads.kv * heads.dim * inputs.query.element_size()
    print(
        f"{sequences:3} sequences share {prefix:6} tokens: apart {apart * 1e6:8.1f} us, once "
        f"{once * 1e6:8.1f} us, {apart / once:5.2f}x, spares {saved / 1e6:8.1f} MB"
    )
    return {
        "sequences": sequences,
        "prefix_tokens": prefix,
        "apart_s": apart,
        "once_s": once,
        "saved_bytes": saved,
        "largest_difference": difference,
    }


def run(setting: Setting) -> Iterator[dict[str, Any]]:
    """The grid, and from how many spared bytes on sharing won at every shape."""
    from testbed.engine.triton_attention import MIN_SAVED_BYTES

    heads = setting.size(LLAMA_8B, TINY)
    rows: list[dict[str, Any]] = []
    for shape in setting.size(SHAPES, ((3, 32),)):
        if not setting.time_is_up:
            rows.append(row(setting, heads, *shape))
            yield {"rows": rows, "engine_shares_from_bytes": MIN_SAVED_BYTES}
    rows.sort(key=lambda r: r["saved_bytes"])
    lost = [r["saved_bytes"] for r in rows if r["once_s"] >= r["apart_s"]]
    wins = [r["saved_bytes"] for r in rows if not lost or r["saved_bytes"] > max(lost)]
    crossing = min(wins) if wins else None
    found = "nowhere" if crossing is None else f"from {crossing / 1e6:.0f} MB on"
    print(f"sharing always won {found}; the engine shares from {MIN_SAVED_BYTES / 1e6:.0f} MB on")
    yield {"won_from_bytes": crossing}
