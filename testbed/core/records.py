"""What a run writes down: the columns of requests, steps and decisions, with their units.

This is the schema module: every table of a run folder has exactly these columns, in this order.
"""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from testbed.core.batch import BatchShape
from testbed.core.request import EMPTY_TOKENS, Request, Sequence


class Column(NamedTuple):
    """dtype: a numpy dtype, "str", or "tokens" for int32[] of any length. doc: meaning and unit."""

    dtype: str
    doc: str


REQUEST_COLUMNS: dict[str, Column] = {
    "request": Column("int64", "the request's id"),
    "replica": Column("int32", "the replica that served it"),
    "client": Column("str", "whose request it is"),
    "weight": Column("float64", "the client's share relative to others"),
    "namespace": Column("str", "prefixes are shared inside a namespace only"),
    "program": Column("str", "program it belongs to; empty if none"),
    "turn": Column("int32", "place in its program, from 0"),
    "status": Column("str", "finished | refused"),
    "refusal": Column("str", "why it was refused; empty otherwise"),
    "arrival_s": Column("float64", "arrival, seconds since the start of the run"),
    "admitted_s": Column("float64", "start of the step that first admitted it; -1 if never"),
    "first_token_s": Column(
        "float64", "end of the step that produced its first token; -1 if never"
    ),
    "finish_s": Column("float64", "end of the step that produced its last token; -1 if never"),
    "prompt_tokens": Column("int64", "prompt length"),
    "output_tokens": Column("int64", "tokens generated"),
    "cached_tokens": Column(
        "int64", "prompt tokens found in the cache at first admission: the hit-rate numerator"
    ),
    "rehit_tokens": Column("int64", "tokens found in the cache at re-admissions after preemption"),
    "recomputed_tokens": Column("int64", "tokens computed again because a preemption dropped them"),
    "chunk_reread_tokens": Column(
        "int64",
        "sum over continuing chunks of what earlier chunks of the same prefill computed; "
        "counting it as reuse is a known bug of other systems",
    ),
    "routed_match_tokens": Column(
        "int64", "prompt tokens its replica had cached when it was routed"
    ),
    "preemptions": Column("int32", "how often it lost its memory"),
    "admitted_step": Column("int64", "the replica's step that first admitted it; -1 if never"),
    "decode_spans": Column(
        "str",
        "unbroken runs of token production as first-last steps of its replica, joined by spaces: "
        "one token at the end of each step of a span that has decode rows, and at its first step",
    ),
}

STEP_COLUMNS: dict[str, Column] = {
    "replica": Column("int32", "which replica"),
    "step": Column("int64", "the replica's step number, from 1"),
    "start_s": Column("float64", "seconds since the start of the run"),
    "end_s": Column("float64", "seconds since the start of the run"),
    "decode_rows": Column("int32", "sequences that decoded one token"),
    "prefill_rows": Column("int32", "sequences that computed part of a prompt"),
    "prefill_tokens": Column("int32", "prompt tokens computed"),
    "waiting": Column("int32", "queue length after admission"),
    "running": Column("int32", "running sequences after admission"),
    "free_pages": Column("int32", "pages that hold nothing, after the step's allocation"),
    "evictable_pages": Column("int32", "cached pages that no running sequence locks, likewise"),
    "locked_pages": Column("int32", "cached pages that running sequences lock, likewise"),
    "evicted_pages": Column("int32", "cached pages evicted to make room for the step"),
}

DECISION_KINDS = ("admit", "batch", "evict", "preempt", "finish", "refuse")

DECISION_COLUMNS: dict[str, Column] = {
    "replica": Column("int32", "which replica"),
    "step": Column("int64", "the replica's step number"),
    "kind": Column("str", " | ".join(DECISION_KINDS)),
    "request": Column("int64", "the request's id; -1 for batch and evict"),
    "tokens": Column(
        "int64",
        "admit: cached tokens; batch: scheduled tokens; evict: evicted tokens; "
        "preempt: tokens whose KV was dropped; finish: generated tokens; refuse: prompt tokens",
    ),
    "value": Column("int64", "admit: tokens to compute; batch: rows; else 0"),
    "digest": Column(
        "uint32", "CRC-32 of the page ids taken, hit or evicted, and of a batch's rows"
    ),
}

ADDED_COLUMNS: dict[str, Column] = {
    "request": Column("int64", "the request's id"),
    "added_s": Column("float64", "when it joined the queue: the first step boundary after arrival"),
    "refusal": Column("str", "why the model cannot serve it; empty if it joined the queue"),
    "prompt": Column("tokens", "token ids"),
    "output": Column("tokens", "what it was told to generate; empty where the model decided"),
    "terms": Column("str", "everything else that was asked, as JSON by field of Request"),
}
"""Of an engine run, in the order of joining: what a replay serves again."""

MEASURED_COLUMNS: dict[str, Column] = {
    "step": Column("int64", "step number, from 1"),
    "seconds": Column("float64", "from this step's boundary to the next, overheads included"),
    "prepare_s": Column("float64", "from the batch to tensors on the device"),
    "forward_s": Column("float64", "the model, up to the logits"),
    "sample_s": Column("float64", "from logits to tokens"),
    **{name: Column("int64", "see BatchShape") for name in BatchShape._fields},
    "tokens": Column("tokens", "what was sampled, in row order: logit_rows tokens"),
}
"""Of an engine run: one row a step."""

_BY_COLUMN = ("id", "prompt", "output")
_NOT_REPLAYED = ("sampling",)
"""How tokens were chosen is no matter once they are known."""


def request_row(sequence: Sequence, replica: int) -> tuple[Any, ...]:
    """One row of REQUEST_COLUMNS for a finished or refused sequence."""
    request = sequence.request
    return (
        request.id,
        replica,
        request.client,
        request.weight,
        request.namespace,
        request.program or "",
        request.turn,
        sequence.state.value,
        sequence.refusal or "",
        request.arrival,
        sequence.admitted_time,
        sequence.first_token_time,
        sequence.finish_time,
        sequence.num_prompt_tokens,
        sequence.num_generated_tokens,
        sequence.num_cached_tokens,
        sequence.num_rehit_tokens,
        sequence.num_recomputed_tokens,
        sequence.chunk_reread_tokens,
        sequence.routed_match_tokens,
        sequence.num_preemptions,
        sequence.admitted_step,
        " ".join(f"{first}-{last}" for first, last in sequence.decode_spans),
    )


def added_row(request: Request, now: float, refusal: str) -> tuple[Any, ...]:
    """One row of ADDED_COLUMNS."""
    left_out = (*_BY_COLUMN, *_NOT_REPLAYED)
    terms = {f.name: getattr(request, f.name) for f in fields(Request) if f.name not in left_out}
    output = EMPTY_TOKENS if request.output is None else request.output
    return (request.id, now, refusal, request.prompt, output, _json(terms))


def added_requests(added: Columns) -> list[Request]:
    """The requests of ADDED_COLUMNS, in order, as they were asked but for how to sample."""
    rows = zip(*(added[name] for name in ("request", "prompt", "output", "terms")), strict=True)
    requests = []
    for id, prompt, output, text in rows:
        terms = json.loads(text)
        stop_tokens = tuple(terms.pop("stop_tokens"))
        scripted = output if len(output) else None
        requests.append(Request(int(id), prompt, scripted, stop_tokens=stop_tokens, **terms))
    return requests


def _json(values: dict[str, Any]) -> str:
    """numpy's numbers are numbers too."""
    return json.dumps(values, default=lambda value: value.item())


Columns = dict[str, npt.NDArray[Any]]


class RunRecord(NamedTuple):
    """A whole run in columns, as numpy arrays: what simulator and engine hand to testbed.metrics.

    requests and steps are in (replica, finishing or step) order; decisions is None unless recorded.
    """

    requests: Columns
    steps: Columns
    decisions: Columns | None
    counters: dict[str, int]
    """Run totals: num_pages, page_size, bytes_per_page (0 if unknown), replicas, skipped_lines."""


def columns_of(rows: list[tuple[Any, ...]], schema: dict[str, Column]) -> Columns:
    """Turn row tuples into one array per column of the schema."""
    transposed = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    return {
        # numpy would make a table of equally long rows of tokens.
        name: np.fromiter(values, dtype=object, count=len(values))
        if column.dtype in ("str", "tokens")
        else np.array(values, dtype=column.dtype)
        for (name, column), values in zip(schema.items(), transposed, strict=True)
    }


def joined(parts: list[Columns]) -> Columns:
    """The rows of several tables of one schema, one after the other."""
    if len(parts) == 1:
        return parts[0]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
