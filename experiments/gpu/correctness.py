"""The kernels against the plain-torch reference in float64, on the device."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import torch

from experiments.gpu.inputs import Heads, Inputs, make_inputs, share_pages
from experiments.gpu.setting import Setting
from testbed_kernels import reference
from testbed_kernels.decode import paged_decode
from testbed_kernels.kv_write import write_kv
from testbed_kernels.prefill import paged_prefill
from testbed_kernels.shared_prefix import SharedPrefixes

KERNELS = ("decode", "prefill", "shared")
CASES_PER_DTYPE = 15
TOLERANCES = ((torch.float32, 3e-5), (torch.float16, 3e-3), (torch.bfloat16, 2e-2))
"""Absolute, on outputs of order one."""
FAR_PAGES = 2**16 + 8
"""Pages of 2^15 bf16 elements each, so that the last lie past 2^31 elements."""


def attention_error(inputs: Inputs, out: torch.Tensor, sliding_window: int | None) -> float:
    """Largest difference to the reference in float64; NaN counts as infinite."""
    expected = reference.paged_attention(
        inputs.query.double(),
        inputs.key_pages.double(),
        inputs.value_pages.double(),
        inputs.batch,
        scale=inputs.scale,
        sliding_window=sliding_window,
    )
    return float((out.double() - expected).abs().nan_to_num(torch.inf).max())


def random_case(
    rng: random.Random, dtype: torch.dtype, kernel: str, setting: Setting
) -> tuple[str, float]:
    """Draw shapes, run a kernel; what was run, and its error."""
    kv = rng.choice([1, 2, 8])
    heads = Heads(kv * rng.choice([1, 3, 4, 7, 20]), kv, rng.choice([64, 80, 96, 128, 256]))
    page_size = rng.choice([1, 5, 16, 64])
    window = rng.choice([None, None, 100]) if kernel != "shared" else None
    longest = setting.size(2000, 40)
    # Full pages that the sequences of the shared kernel have in common.
    common = page_size * rng.randint(1, max(1, longest // page_size)) if kernel == "shared" else 0
    lengths = []
    for _ in range(setting.size(rng.randint(2, 9), 2)):
        new = rng.choice([1, 2, rng.randint(1, 300)]) if kernel == "prefill" else 1
        lengths.append((new, new + common + rng.choice([0, rng.randint(0, longest)])))
    inputs = make_inputs(
        lengths,
        heads,
        setting.device,
        page_size=page_size,
        dtype=dtype,
        seed=rng.randrange(2**31),
    )
    arguments = (inputs.query, inputs.key_pages, inputs.value_pages, inputs.batch)
    if kernel == "prefill":
        out = paged_prefill(*arguments, scale=inputs.scale, sliding_window=window)
    else:
        shared: SharedPrefixes | None = share_pages(inputs, common) if common else None
        out = paged_decode(*arguments, scale=inputs.scale, sliding_window=window, shared=shared)
    shape = f"{heads} page {page_size} window {window} common {common} lengths {lengths}"
    return f"{kernel} {dtype} {shape}", attention_error(inputs, out, window)


def far_pages_error(device: torch.device) -> float:
    """Write and read pages past 2^31 elements of one pool; the largest error of both kernels."""
    heads, page_size, kv_len = Heads(8, 8, 128), 32, 100
    near = make_inputs([(kv_len, kv_len)], heads, device, page_size=page_size)
    pool = torch.empty(
        FAR_PAGES, page_size, heads.kv, heads.dim, dtype=torch.bfloat16, device=device
    )
    values = torch.empty_like(pool)
    table = near.batch.page_table
    pages = torch.arange(FAR_PAGES - table.shape[1], FAR_PAGES, device=device, dtype=torch.int32)
    dense = [
        source[table[0].long()].flatten(0, 1)[:kv_len]
        for source in (near.key_pages, near.value_pages)
    ]
    table.copy_(pages[None])
    write_kv(dense[0], dense[1], pool, values, near.batch)
    # The same tokens in a small pool, for the reference.
    table.copy_(torch.arange(table.shape[1], device=device)[None])
    small = Inputs(near.batch, near.query, pool[pages.long()], values[pages.long()])
    arguments = (near.query, small.key_pages, small.value_pages, near.batch)
    expected = reference.paged_attention(*arguments, scale=near.scale)
    if not torch.equal(small.key_pages.flatten(0, 1)[:kv_len], dense[0]):
        return float("inf")
    table.copy_(pages[None])
    out = paged_prefill(near.query, pool, values, near.batch, scale=near.scale)
    return float((out - expected).abs().nan_to_num(torch.inf).max())


def run(setting: Setting) -> Iterator[dict[str, Any]]:
    """Random shapes for each dtype and kernel; the largest errors, and how many are too large."""
    rng = random.Random(0)
    errors: dict[str, float] = {}
    wrong: list[str] = []
    cases = 0

    def found() -> dict[str, Any]:
        return {
            "cases": cases,
            "largest_errors": errors,
            "wrong": len(wrong),
            "wrong_cases": wrong,
        }

    for index in range(setting.size(CASES_PER_DTYPE, len(KERNELS))):
        for dtype, tolerance in setting.size(TOLERANCES, TOLERANCES[:1]):
            if setting.time_is_up:
                break
            cases += 1
            case, error = random_case(rng, dtype, KERNELS[index % len(KERNELS)], setting)
            key = " ".join(case.split()[:2])
            errors[key] = max(errors.get(key, 0.0), error)
            if error > tolerance:
                wrong.append(f"{case}: {error:.2e} > {tolerance:.0e}")
            yield found()
    if not setting.smoke:
        errors["far pages"] = far_pages_error(setting.device)
        if errors["far pages"] > TOLERANCES[-1][1]:
            wrong.append(f"far pages: {errors['far pages']:.2e}")
        yield found()
    for key, error in errors.items():
        print(f"{key:24} largest error {error:.1e}")
    for line in wrong:
        print(f"WRONG {line}")
