"""FileWorkload: a file of requests in any known format, as a workload."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Literal

import numpy as np

from testbed.core.request import EMPTY_TOKENS, Request, Tokens
from testbed.workloads.formats.reader import RecordReader, read_records
from testbed.workloads.formats.record import Record
from testbed.workloads.parameters import (
    MAX_LENGTH,
    require_int,
    require_one_of,
    require_rate,
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

    Logged outputs keep their tokens; others are made up, and so is what is missing where the log
    counts more tokens than its text has. ids_are_made_up: no model's vocabulary has the prompts'
    token ids (those of the stand-in, and of traces that hold hashes or lengths). Where the file
    holds lengths alone no two prompts share anything. Times start at the first request; without
    any, all arrive at 0. A request's session is its program, and its turn the number of answers
    before it.

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
    ids_are_made_up: bool = field(init=False)
    _reader: RecordReader = field(init=False, repr=False)
    _tokenizer: Tokenizer = field(init=False, repr=False)
    _count: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("output_tokens", "limit"):
            if getattr(self, name) is not None:
                require_int(self, name, 1)
        require_rate(self, "speedup")
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
        count = self._check(islice(records, self.limit))
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

    @property
    def read_as(self) -> str:
        """The format of the file."""
        return self._reader.format

    def _check(self, records: Iterable[Record]) -> int:
        """Count the records; ValueError unless all their token ids are possible ones."""
        if self.vocab is not None and self._tokenizer.vocab > self.vocab:
            raise ValueError(
                f"FileWorkload.vocab={self.vocab}: the tokenizer {self._tokenizer.name} has token "
                f"ids up to {self._tokenizer.vocab - 1}; a vocab above it is needed"
            )
        count = unshared_tokens = 0
        has_text = False
        for record in records:
            count += 1
            where = f"line {record.line} of {self._reader.path}"
            contents = [segment.content for segment in record.segments]
            has_text |= any(isinstance(content, str) for content in contents)
            if record.output is not None:
                contents.append(record.output)
            largest = max((int(c.max()) for c in contents if not isinstance(c, str)), default=0)
            if self.vocab is not None and largest >= self.vocab and self.read_as != "mooncake":
                raise ValueError(
                    f"FileWorkload.vocab={self.vocab}: {where} holds token id {largest}; a vocab "
                    "above it is needed"
                )
            if not contents:
                unshared_tokens += record.prompt_length or 0
            if unshared_tokens > NUM_INT32_TOKENS:
                raise ValueError(
                    f"{where}: more than {NUM_INT32_TOKENS} prompt tokens so far, too many for ids "
                    "of their own; set a limit"
                )
        made_up = self.read_as in ("mooncake", "lengths") or (has_text and self.tokenizer is None)
        object.__setattr__(self, "ids_are_made_up", made_up)
        return count

    def __iter__(self) -> Iterator[Request]:
        records = _Checked(self._reader, self.output_tokens is not None)
        first_arrival: float | None = None
        used_tokens = 0
        for i, tokenized in enumerate(tokenize(islice(records, self._count), self._tokenizer)):
            record = tokenized.record
            arrival = record.arrival or 0.0
            first_arrival = arrival if first_arrival is None else first_arrival
            if record.segments:
                prompt = self._in_vocab(tokenized.prompt)
            else:
                count = record.prompt_length or 0
                prompt = prompt_tokens(used_tokens, count, self.vocab, self.seed)
                used_tokens += count
            yield Request(
                id=i,
                prompt=prompt,
                output=self._output(i, tokenized),
                arrival=(arrival - first_arrival) / self.speedup,
                client=record.client,
                program=record.session,
                turn=record.turn,
            )

    def _in_vocab(self, tokens: Tokens) -> Tokens:
        if self.vocab is None or self.read_as != "mooncake":
            return tokens
        return mixed_tokens(tokens.astype(np.int64), self.vocab, self.seed)

    def _output(self, request: int, tokenized: TokenizedRecord) -> Tokens:
        count = tokenized.output_length or self.output_tokens or 1
        logged = EMPTY_TOKENS if tokenized.output is None else tokenized.output[:count]
        if len(logged) == count:
            return logged
        made_up = output_tokens(request, count, self.vocab, self.seed)
        return np.concatenate((logged, made_up[len(logged) :]))


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
