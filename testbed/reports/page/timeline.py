"""The steps of one run as columns that timeline.js draws."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

MAX_STEPS = 250_000
"""A replica's steps beyond this are merged in equal numbers, so that the page stays small."""
SUMMED = ("prefill_rows", "prefill_tokens", "cached_tokens", "decode_tokens", "evicted_pages")
LEVELS = ("waiting", "running", "own_pages", "locked_pages", "evictable_pages")


def timeline(
    requests: pd.DataFrame, steps: pd.DataFrame, counters: Mapping[str, int]
) -> dict[str, Any]:
    """Plain lists by replica, one value a step; empty without steps.

    requests, steps, counters: of one run. idle_us: time since the step before; step_us: its length;
    both in whole microseconds. cached_tokens: what the requests found that the step admitted first.
    own_pages: the pool's pages that running sequences hold outside the cache. merged: how many
    steps are one here; then SUMMED are sums and LEVELS their largest values.
    """
    num_pages = counters["num_pages"]
    admitted = requests[requests["admitted_step"] >= 0]
    cached = admitted.groupby(["replica", "admitted_step"])["cached_tokens"].sum()
    replicas = []
    for replica, rows in steps.groupby("replica", sort=True):
        here = cached.loc[[replica]].droplevel(0) if replica in cached.index.levels[0] else {}
        held = rows["evictable_pages"] + rows["locked_pages"]
        columns = {
            "step": rows["step"],
            "decode_tokens": rows["decode_rows"],
            "cached_tokens": rows["step"].map(here).fillna(0),
            "own_pages": num_pages - rows["free_pages"] - held,
            **{name: rows[name] for name in (*SUMMED, *LEVELS) if name in rows},
        }
        start = np.rint(1e6 * rows["start_s"].to_numpy()).astype(np.int64)
        end = np.rint(1e6 * rows["end_s"].to_numpy()).astype(np.int64)
        arrays = {name: np.asarray(values, dtype=np.int64) for name, values in columns.items()}
        replicas.append({"replica": int(str(replica)), **_merged(arrays, start, end)})
    return {"num_pages": num_pages, "page_size": counters["page_size"], "replicas": replicas}


def _merged(
    columns: dict[str, npt.NDArray[np.int64]],
    start: npt.NDArray[np.int64],
    end: npt.NDArray[np.int64],
) -> dict[str, Any]:
    merged = -(-len(start) // MAX_STEPS)
    first = np.arange(0, len(start), merged)
    last = np.minimum(first + merged, len(start)) - 1
    start, end = start[first], end[last]
    reduced = {
        name: (np.add if name in SUMMED else np.maximum).reduceat(values, first)
        for name, values in columns.items()
        if name != "step"
    }
    times = {
        "idle_us": np.maximum(start - np.concatenate(([0], end[:-1])), 0),
        "step_us": end - start,
        "step": np.diff(columns["step"][first], prepend=0),
    }
    return {"merged": merged} | {name: v.tolist() for name, v in (times | reduced).items()}
