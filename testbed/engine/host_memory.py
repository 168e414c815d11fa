"""How the C library treats the memory of tensors that come and go with every step."""

from __future__ import annotations

import ctypes

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""From glibc's malloc.h."""
KEPT_BYTES = 2**30
LARGEST_KEPT_BYTES = 2**25
"""The most that glibc takes."""


def keep_freed_memory() -> None:
    """Let this process keep up to KEPT_BYTES of freed memory, in blocks up to LARGEST_KEPT_BYTES.

    glibc gives a block of that size back at once, and the next one costs a page fault for every 4
    KiB of it. Nothing happens on another C library.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        library.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
        library.mallopt(M_MMAP_THRESHOLD, LARGEST_KEPT_BYTES)
