"""Compile every kernel at its committed launch for cards that are not at hand; hold it to limits.

    python -m testbed_kernels.compile_check [--archs sm_80 sm_90] [--head-dims 64 80 96 128 256]
        [--dtypes bf16 fp16 fp32] [--geometries 3]

One line a kernel: registers, stack and shared memory, as cuobjdump reads them from the binary.
A stack means that registers spill. The exit status is 1 if one does, or if shared memory exceeds
the card's. TRITON_INTERPRET must not be set: it replaces the compiler.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from testbed_kernels.decode import decode_kernel, merge_kernel
from testbed_kernels.kv_write import kv_write_kernel
from testbed_kernels.launch import (
    DECODE,
    PREFILL,
    SHARED,
    SHARED_MEMORY,
    Launch,
    padded_head_dim,
)
from testbed_kernels.paging import VARYING
from testbed_kernels.prefill import prefill_kernel
from testbed_kernels.shared_prefix import shared_kernel

HEAD_DIMS = (64, 80, 96, 128, 256)
ELEMENT_SIZES = {"bf16": 2, "fp16": 2, "fp32": 4}
KV_HEADS = 8
DEFAULT = Launch(block_m=1, block_n=1, num_warps=4, num_stages=3)
"""Triton's own warps and stages, for the kernels that are launched without any."""


KERNELS = (
    "decode", "whole_decode", "merge", "suffix", "suffix_merge", "shared", "prefill", "kv_write"
)  # fmt: skip
"""whole_decode: decode of sequences in one part. suffix and suffix_merge: decode and merge of what
is left beside shared pages."""
UNSHARED = ("decode", "whole_decode", "merge", "prefill", "kv_write")
INTEGERS = (
    "kv_lens_ptr",
    "query_starts_ptr",
    "page_table_ptr",
    "suffix_starts_ptr",
    "shared_parts_ptr",
    "items_ptr",
    "members_ptr",
)


class Geometry(NamedTuple):
    """What else the code depends on: a group's query heads, page size, sliding window (0: none)."""

    group: int
    page_size: int
    window: int


GEOMETRIES = (Geometry(4, 16, 0), Geometry(7, 1, 0), Geometry(1, 24, 4096))
"""A common one, one with divisions and single-token pages, and one with a sliding window."""


class Compiled(NamedTuple):
    """What a kernel's binary takes: registers a thread, bytes of stack a thread and of shared
    memory a program; and how many matrix instructions of each kind its code has."""

    kernel: str
    arch: str
    head_dim: int
    dtype: str
    geometry: Geometry
    launch: Launch
    registers: int
    stack: int
    shared: int
    mma: int
    wgmma: int

    @property
    def fits(self) -> bool:
        """Whether nothing spills and the card can launch it."""
        return self.stack == 0 and self.shared <= SHARED_MEMORY[self.arch]

    def __str__(self) -> str:
        tile = "x".join(map(str, self.launch))
        verdict = "ok" if self.fits else "DOES NOT FIT"
        return (
            f"{self.arch} {self.kernel:12} head_dim {self.head_dim:3} {self.dtype} "
            f"group {self.geometry.group} page {self.geometry.page_size:2} "
            f"window {self.geometry.window:4} {tile:12}"
            f"{self.registers:4} registers {self.stack:5} stack {self.shared:7} shared "
            f"{self.mma:4} mma {self.wgmma:4} wgmma  {verdict}"
        )


def compile_kernel(
    kernel: str,
    arch: str,
    head_dim: int,
    dtype: str,
    geometry: Geometry,
    launch: Launch | None = None,
) -> Compiled:
    """Compile one of KERNELS; `launch` stands in for the table's."""
    key = (arch, padded_head_dim(head_dim), ELEMENT_SIZES[dtype])
    paged = {"PAGE_SIZE": geometry.page_size, "HEAD_DIM": head_dim}
    if kernel == "kv_write":
        function, tile = kv_write_kernel, DEFAULT
        block_d = triton.next_power_of_2(head_dim)
        constants = paged | {"KV_HEADS": KV_HEADS, "BLOCK_H": KV_HEADS, "BLOCK_D": block_d}
    elif kernel in ("merge", "suffix_merge"):
        function, tile = merge_kernel, DEFAULT
        constants = {"HEAD_DIM": head_dim, "BLOCK_D": key[1]}
        constants |= {"BLOCK_N": DECODE[key].block_n, "WINDOW": geometry.window}
        constants["SHARED"] = kernel == "suffix_merge"
    else:
        decodes = kernel in ("decode", "whole_decode", "suffix")
        table = DECODE if decodes else SHARED if kernel == "shared" else PREFILL
        tile = launch or table[key]
        constants = paged | {"GROUP": geometry.group, "BLOCK_D": key[1]}
        constants |= {"BLOCK_M": tile.block_m, "BLOCK_N": tile.block_n}
        if decodes:
            function = decode_kernel
            constants |= {"SHARED": kernel == "suffix", "WHOLE": kernel == "whole_decode"}
        else:
            function = shared_kernel if kernel == "shared" else prefill_kernel
        if kernel != "shared":
            constants["WINDOW"] = geometry.window
    source = ASTSource(
        fn=function,
        signature={name: _type(name, dtype, constants) for name in function.arg_names},
        constexprs={(function.arg_names.index(name),): n for name, n in constants.items()},
        attrs={
            (index,): [["tt.divisibility", 16]]
            for index, name in enumerate(function.arg_names)
            if name not in VARYING and (name.endswith("_ptr") or name.startswith("stride_"))
        },
    )
    target = GPUTarget("cuda", int(arch.removeprefix("sm_")), 32)
    options = {"num_warps": tile.num_warps, "num_stages": tile.num_stages}
    binary = triton.compile(source, target=target, options=options)
    usage = _resource_usage(binary.asm["cubin"])
    return Compiled(
        kernel, arch, head_dim, dtype, geometry, tile, usage["REG"], usage["STACK"],
        binary.metadata.shared, binary.asm["ptx"].count("mma.sync"),
        binary.asm["ptx"].count("wgmma.mma_async"),
    )  # fmt: skip


def _type(name: str, dtype: str, constants: dict[str, int]) -> str:
    """The argument's type as the launcher would see it, in Triton's spelling."""
    if name in constants:
        return "constexpr"
    if name in INTEGERS:
        return "*i32"
    if name in ("part_ptr", "lse_ptr"):
        return "*fp32"
    if name.endswith("_ptr"):
        return f"*{dtype}"
    return "fp32" if name == "scale_log2" else "i32"


def _resource_usage(cubin: bytes) -> dict[str, int]:
    """REG, STACK, SHARED and more of the one function in the binary, by cuobjdump."""
    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(tools / "cuobjdump"), "-res-usage", file.name]
        listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {name: int(number) for name, number in re.findall(r"\b([A-Z]+):(\d+)", listing)}


def compile_all(
    archs: list[str], head_dims: list[int], dtypes: list[str], geometries: Iterable[Geometry]
) -> Iterator[Compiled]:
    """Every kernel for every combination, at its committed launch.

    With a sliding window nothing is shared.
    """
    for arch in archs:
        for head_dim in head_dims:
            for dtype in dtypes:
                for geometry in geometries:
                    for kernel in KERNELS if not geometry.window else UNSHARED:
                        yield compile_kernel(kernel, arch, head_dim, dtype, geometry)


def main(arguments: list[str]) -> int:
    """Compile what the arguments name, print a line each; 0 if all fit."""
    parser: Any = argparse.ArgumentParser(prog="testbed_kernels.compile_check")
    parser.add_argument("--archs", nargs="+", choices=SHARED_MEMORY, default=list(SHARED_MEMORY))
    parser.add_argument("--head-dims", nargs="+", type=int, default=list(HEAD_DIMS))
    parser.add_argument("--dtypes", nargs="+", choices=ELEMENT_SIZES, default=list(ELEMENT_SIZES))
    parser.add_argument(
        "--geometries", type=int, default=len(GEOMETRIES), help="how many of GEOMETRIES to take"
    )
    options = parser.parse_args(arguments)
    geometries = GEOMETRIES[: options.geometries]
    fits = True
    for compiled in compile_all(options.archs, options.head_dims, options.dtypes, geometries):
        print(compiled, flush=True)
        fits = fits and compiled.fits
    return 0 if fits else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
