"""Workloads as files that other systems read: Mooncake's trace format, OpenAI's batch format."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

from testbed.core.request import Request
from testbed.whole_file import whole_file
from testbed.workloads.prefix_hashes import PrefixHasher

LEFT_OUT = {
    "mooncake": "tokens, outputs but for their length, clients, sessions",
    "openai_batch": "arrival times, outputs but for their length, sessions",
}
"""What can be written, and what each format has no place for."""


def require_target(to: str) -> None:
    """Raise ValueError unless it is a format that can be written."""
    if to not in LEFT_OUT:
        raise ValueError(f"to={to!r}: one of {', '.join(LEFT_OUT)} is needed")


def write_requests(
    requests: Iterable[Request], path: Path, to: str, *, block_size: int, model: str
) -> int:
    """Write the requests to `path` in the format `to`, in one go; returns how many there are.

    What was at `path` stays until all is there. block_size, model: see the two formats. Raises
    ValueError if there are no requests.
    """
    require_target(to)
    is_mooncake = to == "mooncake"
    written = mooncake_lines(requests, block_size) if is_mooncake else batch_lines(requests, model)
    first = next(written, None)
    if first is None:
        raise ValueError("there are no requests to write; at least one is needed")
    count = 0
    with whole_file(path) as stream:
        for line in chain([first], written):
            stream.write(line.encode())
            count += 1
    return count


def mooncake_lines(requests: Iterable[Request], block_size: int) -> Iterator[str]:
    """Lines of Mooncake's trace format: lengths, and a hash id for each block of the prompt.

    An id stands for the block and all before it, numbered by first appearance; a last partial block
    has one as well, for prompts that end alike. Prompts share ids exactly where they share whole
    blocks of block_size tokens. Times are rounded to milliseconds. Clients, sessions and the tokens
    themselves are left out. Memory: about 100 bytes for each distinct block.
    Source: github.com/kvcache-ai/Mooncake, FAST25-release/traces.
    """
    hasher = PrefixHasher(block_size)
    ids: dict[int, int] = {}
    for request in requests:
        hashes = hasher.pages(request.prompt).tolist()
        row = {
            "timestamp": round(request.arrival * 1000),
            "input_length": len(request.prompt),
            "output_length": request.max_new_tokens,
            "hash_ids": [ids.setdefault(value, len(ids)) for value in hashes],
        }
        yield f"{json.dumps(row)}\n"


def batch_lines(requests: Iterable[Request], model: str) -> Iterator[str]:
    """Lines of OpenAI's batch format: completions of prompts in token ids, of the very length.

    model: what each line asks for. A client is the body's `user`. Arrival times and sessions are
    left out: the format has none. `ignore_eos` is vLLM's and SGLang's; others may refuse it.
    Source: platform.openai.com/docs/guides/batch; vLLM's `run_batch` reads it.
    """
    for request in requests:
        body = {
            "model": model,
            "prompt": request.prompt.tolist(),
            "max_tokens": request.max_new_tokens,
            "ignore_eos": True,
        }
        if request.client != "default":
            body["user"] = request.client
        line = {
            "custom_id": f"request-{request.id}",
            "method": "POST",
            "url": "/v1/completions",
            "body": body,
        }
        yield f"{json.dumps(line)}\n"
