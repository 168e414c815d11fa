"""Which launch is fastest among those that compile without spilling; for the committed table.

Prints, and never changes, testbed_kernels.launch: a table that tunes itself would make two runs
differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from experiments.gpu.inputs import LLAMA_1B, LLAMA_8B, TINY, Heads, Inputs, make_inputs
from experiments.gpu.kernels import decode_seconds, prefill_seconds
from experiments.gpu.setting import Setting
from testbed_kernels.launch import DECODE, PREFILL, Launch, launch_for

DECODE_CANDIDATES = tuple(
    Launch(16, block_n, num_warps, num_stages)
    for block_n in (64, 128)
    for num_warps in (4, 8)
    for num_stages in (3, 5)
)
SPLITS = (1, 2, 4, 8)
PREFILL_CANDIDATES = (
    Launch(64, 64, 4, 3),
    Launch(128, 64, 8, 2),
    Launch(128, 64, 8, 3),
    Launch(128, 128, 8, 3),
)
HEADS = (LLAMA_8B, LLAMA_1B)
SMOKE_CANDIDATES = (Launch(16, 16, 4, 1),)


def rank(
    name: str,
    committed: Launch,
    candidates: tuple[Launch, ...],
    measure: Callable[[Launch], float],
    setting: Setting,
) -> list[dict[str, Any]]:
    """Every candidate and the committed launch, fastest first, as far as the time goes."""
    timed = {
        launch: measure(launch) for launch in (committed, *candidates) if not setting.time_is_up
    }
    rows = []
    for launch, seconds in sorted(timed.items(), key=lambda item: item[1]):
        note = "  committed" if launch == committed else ""
        print(f"{name} {tuple(launch)}: {seconds * 1e6:.1f} us{note}")
        rows.append({"launch": launch, "seconds": seconds, "committed": launch == committed})
    return rows


def decode_rows(heads: Heads, inputs: Inputs, setting: Setting) -> dict[str, Any]:
    """Launches at the chosen number of parts, then numbers of parts at the committed launch."""
    name = f"decode head_dim {heads.dim}"
    by_launch = rank(
        name,
        launch_for(DECODE, inputs.query),
        setting.size(DECODE_CANDIDATES, SMOKE_CANDIDATES),
        lambda launch: decode_seconds(inputs, setting, launch),
        setting,
    )
    by_splits = {
        splits: decode_seconds(inputs, setting, splits=splits)
        for splits in SPLITS
        if not setting.time_is_up
    }
    for splits, seconds in by_splits.items():
        print(f"{name} in {splits} parts: {seconds * 1e6:.1f} us")
    return {"head_dim": heads.dim, "launches": by_launch, "splits": by_splits}


def prefill_rows(heads: Heads, inputs: Inputs, setting: Setting) -> dict[str, Any]:
    """Launches for one prompt."""
    by_launch = rank(
        f"prefill head_dim {heads.dim}",
        launch_for(PREFILL, inputs.query),
        setting.size(PREFILL_CANDIDATES, SMOKE_CANDIDATES),
        lambda launch: prefill_seconds(inputs, setting, launch),
        setting,
    )
    return {"head_dim": heads.dim, "launches": by_launch}


def run(setting: Setting) -> Iterator[dict[str, Any]]:
    """Both kernels at the head widths of Llama 8B and 1B, in bf16."""
    decodes: list[dict[str, Any]] = []
    prefills: list[dict[str, Any]] = []
    for heads in setting.size(HEADS, (TINY,)):
        batch = setting.size([(1, 4096)] * 64, [(1, 40)])
        inputs = make_inputs(batch, heads, setting.device, dtype=setting.dtype)
        decodes.append(decode_rows(heads, inputs, setting))
        yield {"decode": decodes}
        prompt = setting.size([(8192, 8192)], [(20, 20)])
        inputs = make_inputs(prompt, heads, setting.device, dtype=setting.dtype)
        prefills.append(prefill_rows(heads, inputs, setting))
        yield {"prefill": prefills}
