"""Rows of the Mooncake trace format, checked."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from testbed.workloads.formats.fields import Fields, length, present, shown, whole_number
from testbed.workloads.formats.record import PROMPT, Record, RecordSegment
from testbed.workloads.tokens import NUM_INT32_TOKENS

MAX_TIMESTAMP_MS = 1 << 53
"""Beyond it a float no longer holds every whole number."""


class Row(NamedTuple):
    """timestamp: ms. hash_ids: one for each block of the prompt, the last of which may be part."""

    timestamp: int
    input_length: int
    output_length: int
    hash_ids: list[int]


def mooncake_row(fields: Fields, block_size: int) -> Row:
    """The row; ValueError says which field is wrong and what is accepted."""
    timestamp = whole_number(fields, "timestamp", 0, MAX_TIMESTAMP_MS)
    input_length = length(fields, "input_length")
    output_length = length(fields, "output_length")
    return Row(timestamp, input_length, output_length, _hash_ids(fields, input_length, block_size))


def mooncake_record(line: int, fields: Fields, block_size: int) -> Record:
    """The row with made-up token ids: those of a block depend on its hash id alone."""
    row = mooncake_row(fields, block_size)
    starts = np.array(row.hash_ids, dtype=np.int64) * block_size
    numbers = (starts[:, None] + np.arange(block_size)).reshape(-1)[: row.input_length]
    return Record(
        line,
        (RecordSegment(PROMPT, numbers.astype(np.int32)),),
        arrival=row.timestamp / 1000,
        output_length=row.output_length,
    )


def _hash_ids(fields: Fields, input_length: int, block_size: int) -> list[int]:
    ids: Any = present(fields, "hash_ids")
    blocks = -(-input_length // block_size)
    if not isinstance(ids, list):
        raise ValueError(f"hash_ids is {shown(ids)}; a list of {blocks} whole numbers is needed")
    if len(ids) != blocks:
        raise ValueError(
            f"hash_ids has {len(ids)} entries; input_length {input_length} needs {blocks}, "
            f"one for every {block_size} tokens"
        )
    most = NUM_INT32_TOKENS // block_size - 1
    if set(map(type, ids)) != {int} or min(ids) < 0 or max(ids) > most:
        bad = next(i for i in ids if type(i) is not int or not 0 <= i <= most)
        raise ValueError(f"hash_ids holds {shown(bad)}; whole numbers from 0 to {most} are needed")
    return ids
