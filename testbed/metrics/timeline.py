"""When each output token was produced, rebuilt from the steps and the requests' decode spans."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from testbed.core.records import RunRecord

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class Tokens(NamedTuple):
    """The output tokens of one replica: spans over a shared sequence of decode steps.

    A span's first token comes at `first_s`; its others at decode_s[first_decode:last_decode].
    row: int64[spans], row of the requests table; spans are in order of row, then of time.
    decode_s: float64[decode steps], ends of the steps that had decode rows, seconds.
    first_decode, last_decode: int64[spans], indices into decode_s.
    """

    replica: int
    row: Ints
    first_s: Floats
    first_decode: Ints
    last_decode: Ints
    decode_s: Floats

    @property
    def last_s(self) -> Floats:
        """float64[spans], when the span's last token was produced, seconds."""
        single = self.last_decode == self.first_decode
        if not len(self.decode_s):
            return self.first_s
        return np.where(single, self.first_s, self.decode_s[self.last_decode - 1])


def output_tokens(record: RunRecord) -> Iterator[Tokens]:
    """The output tokens of each replica that produced any, by replica number.

    Raises ValueError where decode spans, steps and the count of output tokens disagree.
    """
    row, first, last = _spans(record.requests)
    span_replica = record.requests["replica"][row]
    for replica in np.unique(span_replica).tolist():
        here = span_replica == replica
        of_replica = record.steps["replica"] == replica
        step = record.steps["step"][of_replica]
        end_s = record.steps["end_s"][of_replica]
        decodes = record.steps["decode_rows"][of_replica] > 0
        decode_step = step[decodes]
        at = np.searchsorted(step, first[here])
        if np.any(at == len(step)) or np.any(step[at] != first[here]):
            raise ValueError(f"decode_spans: replica {replica} has a span at a step not in steps")
        tokens = Tokens(
            replica=replica,
            row=row[here],
            first_s=end_s[at],
            first_decode=np.searchsorted(decode_step, first[here], side="right"),
            last_decode=np.searchsorted(decode_step, last[here], side="right"),
            decode_s=end_s[decodes],
        )
        _check_counts(tokens, record.requests)
        yield tokens


def _spans(requests: dict[str, npt.NDArray[Any]]) -> tuple[Ints, Ints, Ints]:
    """Row, first step and last step of every span."""
    texts: list[str] = requests["decode_spans"].tolist()
    per_row = [text.count("-") for text in texts]
    numbers = " ".join(texts).replace("-", " ").split()
    bounds = np.fromiter(map(int, numbers), dtype=np.int64, count=len(numbers))
    row = np.repeat(np.arange(len(texts)), per_row)
    if len(bounds) != 2 * len(row):
        raise ValueError("decode_spans: FIRST-LAST pairs joined by spaces are needed")
    return row, bounds[::2], bounds[1::2]


def _check_counts(tokens: Tokens, requests: dict[str, npt.NDArray[Any]]) -> None:
    produced = np.zeros(len(requests["request"]), dtype=np.int64)
    np.add.at(produced, tokens.row, 1 + tokens.last_decode - tokens.first_decode)
    rows = np.unique(tokens.row)
    wrong = rows[produced[rows] != requests["output_tokens"][rows]]
    if len(wrong):
        row = wrong[0]
        raise ValueError(
            f"decode_spans: request {requests['request'][row]} has {produced[row]} tokens by its "
            f"spans {requests['decode_spans'][row]!r} but output_tokens="
            f"{requests['output_tokens'][row]}"
        )
