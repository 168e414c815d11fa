"""FileWorkload: a file of requests in any known format, as a workload."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Literal

import numpy as np

from testbed.core.request import Request, Tokens
from testbed.workloads.formats.reader import RecordReader, read_records
from testbed.workloads.formats.record import Record
from testbed.workloads.parameters import (
    MAX_LENGTH,
    require_int,
    require_one_of,
    require_positive,
)
from testbed.workloads.tokenize import TokenizedRecord, Tokenizer, load_tokenizer, tokenize
from testbed.workloads.tokens import (
    NUM_INT32_TOKENS,
    mixed_tokens,
    output_tokens,
    prompt_tokens,
    require_vocab,
)


@dataclass(frozen=True, eq=False)
class FileWorkload:
    """The requests of a chat log, a list of prompts, a benchmark's request file or a trace.

    path: a file, or a name inside the data folder; plain or gzipped. format: one of `mooncake`,
    `openai_chat`, `openai_batch`, `sharegpt`, `prompts`, `token_ids`, `lengths`, `text`; None finds
    it by the content. tokenizer: path of a model's tokenizer.json; None takes a stand-in that cuts
    text every four characters or so. output_tokens: the length of outputs that the file does not
    tell. limit: read no more than so many requests. speedup: arrival times are divided by it.
    on_error: what a bad line does, `raise` or `skip` (it is counted in skipped_lines). block_size:
    tokens a hash id of a Mooncake trace names.

    Logged outputs keep their tokens; others are made up. Where the file holds lengths alone no two
    prompts share anything. Times start at the first request; without any, all arrive at 0. A
    request's session is its program, and its turn the number of answers before it.

    Every walk reads the file anew: memory does not grow with it. Everything is checked once, before
    anything runs. Times must be in order, and all requests have one or none. Raises
    FileNotFoundError, or ValueError naming file, line and field.
    """

    path: str | Path
    format: str | None = None
    tokenizer: str | None = None
    output_tokens: int | None = None
    limit: int | None = None
    speedup: float = 1.0
    on_error: Literal["raise", "skip"] = "raise"
    block_size: int = 512
    vocab: int | None = None
    seed: int = 0
    name: str = "file"
    skipped_lines: int = field(init=False)
    _reader: RecordReader = field(init=False, repr=False)
    _tokenizer: Tokenizer = field(init=False, repr=False)
    _count: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("output_tokens", "limit"):
            if getattr(self, name) is not None:
                require_int(self, name, 1)
        require_positive(self, "speedup")
        require_one_of(self, "on_error", ("raise", "skip"))
        require_int(self, "block_size", 1, MAX_LENGTH)
        require_vocab(self)
        require_int(self, "seed", 0)
        reader = read_records(
            self.path, self.format, on_error=self.on_error, block_size=self.block_size
        )
        object.__setattr__(self, "_reader", reader)
        object.__setattr__(self, "_tokenizer", load_tokenizer(self.tokenizer, self.vocab))
        records = _Checked(reader, self.output_tokens is not None)
        count = sum(1 for _ in islice(records, self.limit))
        object.__setattr__(self, "_count", count)
        object.__setattr__(self, "skipped_lines", records.skipped_lines)
        if count == 0:
            left_out = f" ({records.skipped_lines} bad lines were skipped)"
            raise ValueError(
                f"{reader.path} holds no requests{left_out if records.skipped_lines else ''}; "
                "at least one line is needed"
            )

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Request]:
        records = _Checked(self._reader, self.output_tokens is not None)
        first_arrival: float | None = None
        used_tokens = 0
        for i, tokenized in enumerate(tokenize(islice(records, self._count), self._tokenizer)):
            record = tokenized.record
            arrival = record.arrival or 0.0
            first_arrival = arrival if first_arrival is None else first_arrival
            if record.segments:
                prompt = self._in_vocab(tokenized.prompt, record.line)
            else:
                prompt = self._unshared(used_tokens, record)
                used_tokens += len(prompt)
            yield Request(
                id=i,
                prompt=prompt,
                output=self._output(i, tokenized),
                arrival=(arrival - first_arrival) / self.speedup,
                client=record.client,
                program=record.session,
                turn=record.turn,
            )

    def _in_vocab(self, tokens: Tokens, line: int) -> Tokens:
        if self.vocab is None:
            return tokens
        if self._reader.format == "mooncake":
            return mixed_tokens(tokens.astype(np.int64), self.vocab, self.seed)
        largest = int(tokens.max())
        if largest >= self.vocab:
            raise ValueError(
                f"FileWorkload.vocab={self.vocab}: line {line} of {self._reader.path} holds token "
                f"id {largest}; a vocab above it is needed"
            )
        return tokens

    def _unshared(self, first: int, record: Record) -> Tokens:
        count = record.prompt_length or 0
        if first + count > NUM_INT32_TOKENS:
            raise ValueError(
                f"{self._reader.path}, line {record.line}: more than {NUM_INT32_TOKENS} prompt "
                "tokens so far, too many for ids of their own; set a limit"
            )
        return prompt_tokens(first, count, self.vocab, self.seed)

    def _output(self, request: int, tokenized: TokenizedRecord) -> Tokens:
        if tokenized.output is not None and len(tokenized.output):
            return self._in_vocab(tokenized.output, tokenized.record.line)
        count = tokenized.record.output_length or self.output_tokens or 1
        return output_tokens(request, count, self.vocab, self.seed)


class _Checked:
    """The records of one walk that a workload can serve; the others are bad lines too."""

    def __init__(self, reader: RecordReader, knows_outputs: bool) -> None:
        self._reader = reader
        self._knows_outputs = knows_outputs
        self._left_out = 0
        self._latest: Record | None = None

    @property
    def skipped_lines(self) -> int:
        """Bad lines so far."""
        return self._reader.skipped_lines + self._left_out

    def __iter__(self) -> Iterator[Record]:
        for record in self._reader:
            problem = self._problem(record)
            if problem is None:
                self._latest = record
                yield record
            elif self._reader.skips:
                self._left_out += 1
            else:
                raise ValueError(f"{self._reader.path}, line {record.line}: {problem}")

    def _problem(self, record: Record) -> str | None:
        if record.output is None and record.output_length is None and not self._knows_outputs:
            return "no length of the output; set output_tokens for requests that do not tell theirs"
        latest = self._latest
        if latest is None:
            return None
        if (record.arrival is None) != (latest.arrival is None):
            which = "no arrival time" if record.arrival is None else "an arrival time"
            return f"{which}, unlike line {latest.line}; all requests need one, or none"
        if record.arrival is None or latest.arrival is None or record.arrival >= latest.arrival:
            return None
        return (
            f"arrival {record.arrival:f} is before {latest.arrival:f}, that of line {latest.line}; "
            "lines in order of time are needed"
        )
