"""Traces that hold arrival times and lengths alone, as CSV: nothing is known of what they share."""

from __future__ import annotations

from typing import NamedTuple

from testbed.workloads.formats.fields import MAX_SECONDS, iso_seconds
from testbed.workloads.formats.record import Record
from testbed.workloads.parameters import MAX_LENGTH


class Columns(NamedTuple):
    """Names of the columns of one trace, and what stands before a client's number."""

    arrival: str
    prompt: str
    output: str
    client: str | None = None


TRACES = {
    "azure": Columns("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
    "burstgpt": Columns("Timestamp", "Request tokens", "Response tokens", "Model"),
    "vtc": Columns("req_time_s", "prompt_len", "output_len", "client"),
}
"""Azure LLM inference traces (github.com/Azure/AzurePublicDataset), BurstGPT
(github.com/HPMLL/BurstGPT), and the Arena trace of VTC (github.com/Ying1123/VTC-artifact) as
columns."""


def known_headers() -> str:
    """The columns of each trace, for messages."""
    shown = (", ".join(name for name in columns if name is not None) for columns in TRACES.values())
    return "; ".join(shown)


def columns_of(header: list[str]) -> Columns | None:
    """The columns of the trace that has this header; None if no known one has."""
    names = [name.strip() for name in header]
    for columns in TRACES.values():
        if {name for name in columns if name is not None} <= set(names):
            return columns
    return None


def length_record(line: int, columns: Columns, row: dict[str, str]) -> Record:
    """One row. A BurstGPT row with no response tokens is one that failed, and an error."""
    arrival, is_date = _time(row, columns.arrival)
    return Record(
        line,
        (),
        prompt_length=_length(row, columns.prompt),
        client="default" if columns.client is None else row[columns.client] or "default",
        arrival=arrival,
        clock=f"{columns.arrival} as a {'date' if is_date else 'number'}",
        output_length=_length(row, columns.output),
    )


def _length(row: dict[str, str], name: str) -> int:
    value = row[name]
    digits = value.isascii() and value.isdigit() and len(value) <= 8
    if not digits or not 1 <= int(value) <= MAX_LENGTH:
        raise ValueError(
            f"{name} is {value[:40]!r}; a whole number from 1 to {MAX_LENGTH} is needed"
        )
    return int(value)


def _time(row: dict[str, str], name: str) -> tuple[float, bool]:
    """Seconds, and whether they are told as a date."""
    value = row[name]
    try:
        time = float(value)
    except ValueError:
        return iso_seconds(name, value), True
    if not 0 <= time <= MAX_SECONDS:
        raise ValueError(
            f"{name} is {value[:40]!r}; seconds from 0 on or an ISO 8601 date is needed"
        )
    return time, False
