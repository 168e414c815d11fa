"""How well a simulation predicted what an engine then measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from testbed.core.records import RunRecord

FIGURES: Mapping[str, str] = MappingProxyType(
    {
        "output_tokens_per_s": "output tokens over the makespan",
        "makespan_s": "first arrival to last finish",
        "ttft_p50_s": "median time to first token",
        "ttft_p95_s": "95th percentile of the same",
        "tpot_p50_s": "median time per output token after the first",
        "tpot_p95_s": "95th percentile of the same",
        "hit_rate": "cached prompt tokens / prompt tokens",
    }
)
"""What is compared, over the requests that finished."""


class Prediction(NamedTuple):
    """One figure of one workload: what was predicted, what several runs measured.

    predicted, measured: medians. error: of predicted less measured, run by run and over measured,
    the median; for hit_rate of the plain difference. spread: the largest distance of a run from
    the measured median, likewise over it or plain.
    """

    workload: str
    figure: str
    predicted: float
    measured: float
    error: float
    spread: float


def served_figures(record: RunRecord) -> dict[str, float]:
    """FIGURES of one run; NaN where nothing finished, or nothing had a second token."""
    requests = record.requests
    finished = requests["status"] == "finished"
    arrival, first, finish = (
        requests[name][finished] for name in ("arrival_s", "first_token_s", "finish_s")
    )
    outputs = requests["output_tokens"][finished]
    later = outputs > 1
    ttft = first - arrival
    tpot = (finish - first)[later] / (outputs[later] - 1)
    makespan = finish.max() - requests["arrival_s"].min() if len(finish) else np.nan
    admitted = requests["admitted_step"] >= 0
    prompts = requests["prompt_tokens"][admitted].sum()
    values = {
        "output_tokens_per_s": outputs.sum() / makespan,
        "makespan_s": makespan,
        "ttft_p50_s": _quantile(ttft, 0.5),
        "ttft_p95_s": _quantile(ttft, 0.95),
        "tpot_p50_s": _quantile(tpot, 0.5),
        "tpot_p95_s": _quantile(tpot, 0.95),
        "hit_rate": requests["cached_tokens"].sum() / prompts if prompts else np.nan,
    }
    return {name: float(values[name]) for name in FIGURES}


def compare_runs(
    workload: str, predicted: Sequence[RunRecord], measured: Sequence[RunRecord]
) -> list[Prediction]:
    """One row for each of FIGURES; predicted[i] is what was predicted of measured[i]."""
    foreseen = [served_figures(record) for record in predicted]
    runs = [served_figures(record) for record in measured]
    rows = []
    for figure in FIGURES:
        said = np.array([run[figure] for run in foreseen])
        values = np.array([run[figure] for run in runs])
        middle = float(np.median(values))
        plain = figure == "hit_rate"
        rows.append(
            Prediction(
                workload=workload,
                figure=figure,
                predicted=float(np.median(said)),
                measured=middle,
                error=float(np.median((said - values) / (1.0 if plain else values))),
                spread=float(np.abs(values - middle).max()) / (1.0 if plain else middle),
            )
        )
    return rows


def _quantile(values: npt.NDArray[Any], q: float) -> float:
    return float(np.quantile(values, q)) if len(values) else float("nan")
