"""What is learned of every request of a log in one pass and bounded memory."""

from __future__ import annotations

from collections import Counter

import numpy as np
import numpy.typing as npt

from testbed.workloads.formats.record import Record
from testbed.workloads.tokens import WEYL, mix64

BLOCK_BYTES = 64
"""About 16 tokens of English."""
MAX_CLIENTS = 100_000
_WORDS_PER_BLOCK = BLOCK_BYTES // 8


class LogSketch:
    """Counts over all requests, and how much of their text repeats an earlier beginning.

    The distinct prefixes of the log, in blocks of BLOCK_BYTES bytes, are estimated from those whose
    64-bit hash falls below a threshold, which halves whenever there are more than max_hashes of
    them: the estimate is exact until then, and has a relative error of about 1 / sqrt(max_hashes)
    afterwards. Requests that have token ids are sketched by these; num_ids counts them, num_bytes
    the text of the others.
    """

    def __init__(self, max_hashes: int = 1 << 18) -> None:
        self.num_requests = 0
        self.num_bytes = 0
        self.num_ids = 0
        self.num_blocks = 0
        self.num_length_only = 0
        self.num_sessions_named = 0
        self.num_arrivals = 0
        self.clients: Counter[str] = Counter()
        self.requests_of_other_clients = 0
        self._max_hashes = max_hashes
        self._hashes: set[int] = set()
        self._shift = 0
        self._multipliers = _mixed(np.arange(1 << 10, dtype=np.uint64))

    def add(self, record: Record) -> None:
        """The next record of the log."""
        self.num_requests += 1
        self.num_sessions_named += record.session is not None
        self.num_arrivals += record.arrival is not None
        if record.client in self.clients or len(self.clients) < MAX_CLIENTS:
            self.clients[record.client] += 1
        else:
            self.requests_of_other_clients += 1
        if not record.segments:
            self.num_length_only += 1
            return
        text = b""
        for segment in record.segments:
            if isinstance(segment.content, str):
                content = segment.content.encode()
                self.num_bytes += len(content)
            else:
                content = segment.content.tobytes()
                self.num_ids += len(segment.content)
            text += b"\x00%s\x00%s" % (segment.role.encode(), content)
        blocks = len(text) // BLOCK_BYTES
        self.num_blocks += blocks
        if blocks:
            self._add_blocks(np.frombuffer(text, np.uint64, blocks * _WORDS_PER_BLOCK))

    @property
    def sharing(self) -> float:
        """Share of the blocks that an earlier request began with as well; 0 without any."""
        if not self.num_blocks:
            return 0.0
        distinct = len(self._hashes) << self._shift
        return max(0.0, 1 - distinct / self.num_blocks)

    @property
    def is_exact(self) -> bool:
        """Whether `sharing` counts every block."""
        return self._shift == 0

    def _add_blocks(self, words: npt.NDArray[np.uint64]) -> None:
        if len(words) > len(self._multipliers):
            size = 1 << (len(words) - 1).bit_length()
            self._multipliers = _mixed(np.arange(size, dtype=np.uint64))
        sums = np.cumsum(_mixed(words) * self._multipliers[: len(words)], dtype=np.uint64)
        hashes = _mixed(sums[_WORDS_PER_BLOCK - 1 :: _WORDS_PER_BLOCK])
        if self._shift:
            hashes = hashes[hashes >> np.uint64(64 - self._shift) == 0]
        self._hashes.update(hashes.tolist())
        while len(self._hashes) > self._max_hashes:
            self._shift += 1
            least = 1 << (64 - self._shift)
            self._hashes = {value for value in self._hashes if value < least}


def _mixed(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """SplitMix64 of each number."""
    return mix64(values + WEYL)
