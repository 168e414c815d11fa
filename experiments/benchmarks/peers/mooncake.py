"""A Mooncake trace as the peers' token ids: 64-bit, the ids of block b are 512 b to 512 b + 511."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator

import numpy as np


def prompts(path: str) -> Iterator[array[int]]:
    """The prompts in arrival order, built one at a time."""
    offsets = np.arange(512, dtype=np.int64)
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            blocks = np.array(row["hash_ids"], dtype=np.int64)
            tokens = (blocks[:, None] * 512 + offsets).ravel()[: row["input_length"]]
            prompt = array("q")
            prompt.frombytes(tokens.tobytes())
            yield prompt
