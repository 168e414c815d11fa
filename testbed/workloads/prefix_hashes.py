"""Prefixes as 64-bit numbers: equal prefixes have equal ones, others hardly ever do.

Among n distinct prefixes some two agree with a probability of about n ** 2 / 2 ** 65: one in 70,000
for 23 million. Counting and naming prefixes this way takes 8 bytes each, whatever their length.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from testbed.core.request import Tokens
from testbed.workloads.parameters import MAX_LENGTH, require_int
from testbed.workloads.tokens import WEYL, mix64

Hashes = npt.NDArray[np.uint64]


class PrefixHasher:
    """Hashes of the prefixes of prompts that end with a page of `page_size` tokens."""

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        require_int(self, "page_size", 1, MAX_LENGTH)
        self._weights = mix64(np.arange(1, page_size + 1, dtype=np.uint64)) | 1

    def full_pages(self, tokens: Tokens) -> Hashes:
        """uint64[len(tokens) // page_size]: one for the prefix up to the end of each full page."""
        count = len(tokens) // self.page_size
        return self._chained(tokens[: count * self.page_size].reshape(count, self.page_size))

    def pages(self, tokens: Tokens) -> Hashes:
        """The same for all pages; that of a last partial page depends on its length too."""
        count = -(-len(tokens) // self.page_size)
        padded = np.full(count * self.page_size, -1, dtype=np.int32)
        padded[: len(tokens)] = tokens
        return self._chained(padded.reshape(count, self.page_size))

    def _chained(self, pages: Tokens) -> Hashes:
        numbers = pages.astype(np.uint64) * WEYL
        numbers ^= numbers >> 32
        # The place of a page is mixed in before the sum, so that their order counts.
        places = np.arange(1, len(pages) + 1, dtype=np.uint64) * WEYL
        return np.cumsum(mix64((numbers @ self._weights) ^ places), dtype=np.uint64)


def hash_of_text(text: str) -> int:
    """A 64-bit number of a name, the same in every process."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")
