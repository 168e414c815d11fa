"""Recorded traffic: the Mooncake trace format, read, checked and expanded to tokens."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from testbed.core.request import Request
from testbed.workloads.data_folder import find_data_file
from testbed.workloads.formats.fields import require_object
from testbed.workloads.formats.mooncake import Row, mooncake_row
from testbed.workloads.formats.source import Line, lines, parse_line
from testbed.workloads.parameters import (
    MAX_LENGTH,
    require_int,
    require_one_of,
    require_rate,
)
from testbed.workloads.tokens import (
    mixed_tokens,
    output_tokens,
    require_vocab,
)


@dataclass(frozen=True, eq=False)
class MooncakeTrace:
    """A trace of `timestamp` (ms), `input_length`, `output_length` and `hash_ids`, JSON lines.

    A hash id names one block of `block_size` prompt tokens together with all that precedes it; the
    last block of a prompt may be partial. Each id expands to tokens that depend on it alone, so
    prompts share prefixes exactly where they share leading ids (given a `vocab`, almost exactly).
    Generated tokens are not in the format: they are made up, and no later prompt contains them.

    The format names no clients either. With clients=n, conversations (prompts with an equal second
    block) are dealt to n clients in order of first appearance, the k-th client's share being
    proportional to 1 / k: traffic of unequal clients, each with prefixes of its own.

    path: a file, or a name inside the data folder. limit: read no more than so many requests.
    speedup: arrival times are divided by it. on_error: what a bad line does, `raise` or `skip` (it
    is counted in skipped_lines). Blank lines are passed over. Timestamps are kept as they are: the
    run starts at 0, not at the first request.

    Raises FileNotFoundError, or ValueError naming file, line and field. Everything is checked here,
    before anything runs. A line needs: whole numbers (a timestamp may be written 3000.0), 1 to
    10,000,000 tokens of input and of output (no published row has an empty output), timestamps in
    order, ceil(input_length / block_size) hash ids, each small enough for int32 token ids.
    Source: github.com/kvcache-ai/Mooncake, FAST25-release/traces.
    """

    path: str | Path
    limit: int | None = None
    speedup: float = 1.0
    block_size: int = 512
    on_error: Literal["raise", "skip"] = "raise"
    clients: int = 1
    vocab: int | None = None
    seed: int = 0
    name: str = "mooncake"
    skipped_lines: int = field(init=False)
    _rows: _Rows = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.limit is not None:
            require_int(self, "limit", 1)
        require_rate(self, "speedup")
        require_int(self, "block_size", 1, MAX_LENGTH)
        require_one_of(self, "on_error", ("raise", "skip"))
        require_int(self, "clients", 1)
        require_vocab(self)
        require_int(self, "seed", 0)
        rows, skipped = _read(
            find_data_file(self.path), self.limit, self.block_size, self.on_error == "skip"
        )
        object.__setattr__(self, "_rows", rows)
        object.__setattr__(self, "skipped_lines", skipped)

    def __len__(self) -> int:
        return len(self._rows.timestamps)

    def __iter__(self) -> Iterator[Request]:
        rows = self._rows
        dtype = np.int32 if self.vocab is None else np.int64
        starts: npt.NDArray[Any] = (rows.hash_ids * self.block_size).astype(dtype)
        offsets: npt.NDArray[Any] = np.arange(self.block_size, dtype=dtype)
        arrivals = (rows.timestamps / 1000 / self.speedup).tolist()
        clients = self._clients()
        first = 0
        for i, arrival in enumerate(arrivals):
            length = int(rows.input_lengths[i])
            after = first - -length // self.block_size
            numbers = (starts[first:after, None] + offsets).reshape(-1)[:length]
            first = after
            yield Request(
                id=i,
                prompt=numbers
                if self.vocab is None
                else mixed_tokens(numbers, self.vocab, self.seed),
                output=output_tokens(i, int(rows.output_lengths[i]), self.vocab, self.seed),
                arrival=arrival,
                client=clients[i],
            )

    def _clients(self) -> list[str]:
        """The client of every row."""
        if self.clients == 1:
            return ["default"] * len(self)
        rows = self._rows
        blocks = -(-rows.input_lengths // self.block_size)
        first = np.cumsum(blocks) - blocks
        # A prompt of one block is a conversation of its own.
        alone = -1 - np.arange(len(blocks))
        second = rows.hash_ids[np.minimum(first + 1, len(rows.hash_ids) - 1)]
        conversations = np.where(blocks > 1, second, alone).tolist()
        dealt = dict(zip(dict.fromkeys(conversations), _deal(self.clients), strict=False))
        return [f"client-{dealt[conversation]}" for conversation in conversations]


def _deal(clients: int) -> Iterator[int]:
    """Clients 1..n again and again, in shares of 1 / k, each as evenly spread as it can be."""
    shares = 1 / np.arange(1, clients + 1)
    shares /= shares.sum()
    owed = np.zeros(clients)
    while True:
        owed += shares
        chosen = int(owed.argmax())
        owed[chosen] -= 1
        yield chosen + 1


class _Rows(NamedTuple):
    """timestamps float64[n] in ms, lengths int64[n], hash_ids int64[sum of blocks], row by row."""

    timestamps: npt.NDArray[np.float64]
    input_lengths: npt.NDArray[np.int64]
    output_lengths: npt.NDArray[np.int64]
    hash_ids: npt.NDArray[np.int64]


def _read(path: Path, limit: int | None, block_size: int, skip: bool) -> tuple[_Rows, int]:
    timestamps, inputs, outputs, hash_ids = array("d"), array("q"), array("q"), array("q")
    skipped = 0
    earliest = 0.0
    for line in lines(path):
        if len(timestamps) == limit:
            break
        try:
            row = _parse(line, block_size, earliest)
        except ValueError as error:
            if not skip:
                raise ValueError(f"{path}, line {line.number}: {error}") from None
            skipped += 1
            continue
        earliest = row.timestamp
        timestamps.append(row.timestamp)
        inputs.append(row.input_length)
        outputs.append(row.output_length)
        hash_ids.extend(row.hash_ids)
    if not timestamps:
        left_out = f" ({skipped} bad lines were skipped)" if skipped else ""
        raise ValueError(f"{path} holds no requests{left_out}; at least one line is needed")
    rows = _Rows(*(np.array(column) for column in (timestamps, inputs, outputs, hash_ids)))
    return rows, skipped


def _parse(line: Line, block_size: int, earliest: float) -> Row:
    row = mooncake_row(require_object(parse_line(line)), block_size)
    if row.timestamp < earliest:
        raise ValueError(
            f"timestamp {row.timestamp} is before {earliest:.0f}, that of an earlier line; "
            f"lines in order of time are needed"
        )
    return row
