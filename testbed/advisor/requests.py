"""Records as requests that the bounds and the simulator take."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from testbed.core.request import Request
from testbed.workloads.formats.record import Record
from testbed.workloads.tokenize import TokenizedRecord, Tokenizer, tokenize
from testbed.workloads.tokens import output_tokens

DEFAULT_OUTPUT = 128
"""Tokens, where a log tells nothing of its outputs."""


def requests_of(
    records: Iterable[Record], tokenizer: Tokenizer, *, isolated: bool = False
) -> Iterator[Request]:
    """Requests in order, ids from 0, all arriving at once; outputs are the log's where it has them.

    isolated: each client gets a namespace of its own.
    """
    for i, record in enumerate(tokenize(records, tokenizer)):
        yield _request(i, record, isolated)


def _request(index: int, tokenized: TokenizedRecord, isolated: bool) -> Request:
    record = tokenized.record
    output = tokenized.output
    if output is None or len(output) == 0:
        length = record.output_length or DEFAULT_OUTPUT
        output = output_tokens(index, length, None, 0)
    return Request(
        id=index,
        prompt=np.ascontiguousarray(tokenized.prompt),
        output=output,
        client=record.client,
        namespace=record.client if isolated else "",
    )
