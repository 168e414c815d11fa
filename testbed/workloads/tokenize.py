"""Text to token ids: by a real tokenizer when one is given, else by a stable stand-in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from testbed.core.request import EMPTY_TOKENS, Tokens
from testbed.workloads.formats.record import PROMPT, TOOL, Content, Record
from testbed.workloads.tokens import NUM_INT32_TOKENS, mixed_tokens

BATCH_RECORDS, BATCH_CHARACTERS = 256, 1 << 20
"""Records are tokenised together until either is reached; a segment counts 16 characters more."""

TOOLS_ROLE = "tools"
"""The role under which a prompt lists its tool definitions."""


class Tokenizer(Protocol):
    """Turns each of some texts into token ids, without looking at the others."""

    @property
    def name(self) -> str:
        """What reports call it."""
        ...

    @property
    def vocab(self) -> int:
        """All ids are below it."""
        ...

    def encode(self, texts: Sequence[str]) -> list[Tokens]:
        """int32 token ids of each text; an empty text has none. No special tokens are added."""
        ...


class StandInTokenizer:
    """Cuts text as byte-pair tokenizers roughly do, and numbers each piece by its bytes.

    A piece is a run of letters with a single space before it, of digits, of spaces or of
    punctuation, at most `PIECE_BYTES` bytes of it (more with the space). Its id is a mix of its
    bytes, the same in every process. Where a piece ends is decided by what is left of it, so the
    tokens of a text begin with those of any prefix of it, less the last one. ChatML's markers are a
    token each, also where a text merely quotes one: a prefix that ends inside a marker is then cut
    otherwise, and the control characters 2 and 3 count as markers too. `vocab`: ids are below it;
    with the default two different pieces hardly ever share one. About 4 characters of English make
    a token: a stand-in for counting and sharing, not for feeding a model.
    """

    PIECE_BYTES = 6

    def __init__(self, vocab: int | None = None) -> None:
        self.name = "stand-in"
        self.vocab = NUM_INT32_TOKENS if vocab is None else vocab

    def encode(self, texts: Sequence[str]) -> list[Tokens]:
        """int32 token ids of each text."""
        if not texts:
            return []
        encoded = [_with_short_markers(text).encode() for text in texts]
        joined = _SEPARATOR + _SEPARATOR.join(encoded) + bytes(8)
        characters = np.frombuffer(joined, dtype=np.uint8)[:-8]
        starts = self._piece_starts(characters)
        lengths = np.diff(starts, append=len(characters))
        # The eight bytes from each start on, of which the piece takes at most seven.
        words = np.ndarray(len(characters), np.dtype("<u8"), joined, strides=(1,))[starts]
        numbers = words & _LOW_BYTES[lengths] | lengths.astype(np.uint64) << np.uint64(56)
        ids = mixed_tokens(numbers.view(np.int64), self.vocab, 0)
        # Every text's pieces follow its separator, which is a piece of its own.
        separators = np.flatnonzero(characters[starts] == _SEPARATOR[0])
        ends = [*separators[1:].tolist(), len(starts)]
        return [ids[a + 1 : b] for a, b in zip(separators.tolist(), ends, strict=True)]

    def _piece_starts(self, characters: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
        kinds = _KINDS[characters]
        changes = np.ones(len(kinds) + 1, dtype=bool)
        changes[1:-1] = (kinds[1:] != kinds[:-1]) | (kinds[1:] == _MARKER)
        # A single space belongs to the word behind it.
        led = changes[:-2] & changes[1:-1] & (kinds[:-1] == _SPACE) & (kinds[1:] == _LETTER)
        changes[1:-1] &= ~led
        bounds = np.flatnonzero(changes)
        runs, lead = bounds[:-1], np.append(led, False)[bounds[:-1]]
        pieces = np.maximum(np.diff(bounds) - lead - 1, 0) // self.PIECE_BYTES + 1
        ends = np.cumsum(pieces)
        place = np.arange(ends[-1]) - np.repeat(ends - pieces, pieces)
        shift = place * self.PIECE_BYTES + (np.repeat(lead, pieces) & (place > 0))
        starts: npt.NDArray[np.int64] = np.repeat(runs, pieces) + shift
        return starts


class FileTokenizer:
    """A model's own tokenizer from its `tokenizer.json`; needs the package `tokenizers`.

    Raises FileNotFoundError, or ValueError if the file is no tokenizer.
    """

    def __init__(self, path: str | Path) -> None:
        self.name = str(path)
        if not Path(path).is_file():
            raise FileNotFoundError(
                f"tokenizer={self.name!r}: no such file; the path of a tokenizer.json is needed"
            )
        try:
            import tokenizers
        except ImportError:
            raise ValueError(
                f"tokenizer={self.name!r}: reading it needs the package tokenizers "
                "(pip install tokenizers)"
            ) from None
        try:
            self._tokenizer: Any = tokenizers.Tokenizer.from_file(self.name)
        except Exception as error:
            # The package raises bare Exception for whatever it cannot read.
            reason = " ".join(str(error).split())
            raise ValueError(f"tokenizer={self.name!r}: not a tokenizer.json ({reason})") from None
        self.vocab = max(self._tokenizer.get_vocab().values(), default=0) + 1

    def encode(self, texts: Sequence[str]) -> list[Tokens]:
        """int32 token ids of each text."""
        encodings = self._tokenizer.encode_batch(list(texts), add_special_tokens=False)
        return [np.array(encoding.ids, dtype=np.int32) for encoding in encodings]


def load_tokenizer(path: str | Path | None, vocab: int | None = None) -> Tokenizer:
    """The tokenizer of a tokenizer.json, or the stand-in (with ids below `vocab`) without one."""
    return StandInTokenizer(vocab) if path is None else FileTokenizer(path)


class TokenizedRecord:
    """A record with its prompt in tokens.

    segments: int32 ids of each segment of the record, its chat markers included, in order.
    closing: what follows them all (the marker that opens the assistant's turn); may be empty.
    output: ids of the logged output; None where the record has none.
    """

    __slots__ = ("closing", "output", "record", "segments")

    def __init__(
        self,
        record: Record,
        segments: tuple[Tokens, ...],
        closing: Tokens,
        output: Tokens | None,
    ) -> None:
        self.record = record
        self.segments = segments
        self.closing = closing
        self.output = output

    @property
    def prompt(self) -> Tokens:
        """int32 ids of the whole prompt; empty where the file has lengths alone."""
        parts = [part for part in (*self.segments, self.closing) if len(part)]
        return parts[0] if len(parts) == 1 else np.concatenate(parts or [EMPTY_TOKENS])

    @property
    def output_length(self) -> int | None:
        """Tokens of the output: as the log counts them, else counted; None if nothing tells."""
        if self.record.output_length is not None or self.output is None:
            return self.record.output_length
        return len(self.output)


def tokenize(records: Iterable[Record], tokenizer: Tokenizer) -> Iterator[TokenizedRecord]:
    """The records in tokens, in order, streamed in small batches.

    A chat is written as ChatML: `<|im_start|>role`, newline, content, `<|im_end|>`, newline, and at
    its end the opening of the assistant's turn; tool definitions stand before the messages, one a
    line, in a turn of their own. Marker and content are tokenised apart, as tokenizers with special
    tokens do, so an answer has the same tokens as output and in a later prompt.
    """
    for batch in _batches(records):
        plans = [_plan(record) for record in batch]
        # A text that many prompts of the batch hold is cut once.
        texts: dict[str, int] = {}
        for part in (part for plan in plans for part in plan):
            for piece in part:
                if isinstance(piece, str):
                    texts.setdefault(piece, len(texts))
        ids = tokenizer.encode(list(texts))
        for record, (*segments, closing, output) in zip(batch, plans, strict=True):
            yield TokenizedRecord(
                record,
                tuple(_joined(part, texts, ids) for part in segments),
                _joined(closing, texts, ids),
                _joined(output, texts, ids) if output else None,
            )


def _batches(records: Iterable[Record]) -> Iterator[list[Record]]:
    batch: list[Record] = []
    size = 0
    for record in records:
        batch.append(record)
        size += sum(len(segment.content) + 16 for segment in record.segments)
        if len(batch) == BATCH_RECORDS or size >= BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _plan(record: Record) -> list[list[Content]]:
    """The pieces of each segment, then of the closing, then of the output."""
    segments = record.segments
    plan: list[list[Content]] = []
    for i, segment in enumerate(segments):
        if segment.role == PROMPT:
            plan.append([segment.content])
        elif segment.role == TOOL:
            first = i == 0
            last = i + 1 == len(segments) or segments[i + 1].role != TOOL
            opening: list[Content] = [f"<|im_start|>{TOOLS_ROLE}\n"] if first else []
            plan.append([*opening, segment.content, "<|im_end|>\n" if last else "\n"])
        else:
            plan.append([f"<|im_start|>{segment.role}\n", segment.content, "<|im_end|>\n"])
    is_chat = bool(segments) and segments[-1].role != PROMPT
    plan.append(["<|im_start|>assistant\n"] if is_chat else [])
    plan.append([] if record.output is None else [record.output])
    return plan


def _joined(pieces: list[Content], texts: dict[str, int], ids: list[Tokens]) -> Tokens:
    parts = [ids[texts[piece]] if isinstance(piece, str) else piece for piece in pieces]
    return parts[0] if len(parts) == 1 else np.concatenate(parts or [EMPTY_TOKENS])


_SEPARATOR = b"\xff"
"""A byte that no UTF-8 text holds."""

_LOW_BYTES = np.array([(1 << 8 * count) - 1 for count in range(8)], dtype=np.uint64)

_CHAT_MARKERS = {"<|im_start|>": "\x02", "<|im_end|>": "\x03"}
"""One token each, as in a vocabulary that knows them."""

_SPACE, _LETTER, _DIGIT, _OTHER, _MARKER = range(5)


def _with_short_markers(text: str) -> str:
    for marker, character in _CHAT_MARKERS.items():
        text = text.replace(marker, character)
    return text


def _kinds_of_bytes() -> npt.NDArray[np.uint8]:
    kinds = np.full(256, _OTHER, dtype=np.uint8)
    kinds[list(b" \t\n\r\v\f")] = _SPACE
    kinds[list(b"0123456789")] = _DIGIT
    kinds[list(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_")] = _LETTER
    # Beyond ASCII everything counts as letters.
    kinds[128:] = _LETTER
    kinds[[*b"\x02\x03", *_SEPARATOR]] = _MARKER
    return kinds


_KINDS = _kinds_of_bytes()
