"""FittedLatency: step times of one model on one machine, fitted to the steps of engine runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from testbed.core.batch import BatchShape
from testbed.core.records import Columns
from testbed.sim.latency import LatencyModel, check_decode_only
from testbed.whole_file import whole_file

Floats = npt.NDArray[np.float64]

TOKEN_KNOTS = (1, 4, 16, 64, 256)
"""Where the price of a computed token changes: a few tokens leave the weights' reading to pay for,
many fill the matrix products, and in between lies what a machine's kernels make of it."""
SLOW_PRODUCTS = (2, 3)
"""Matrix products of so few rows have kernels of their own, on CPUs slower ones than four rows."""
READ_KNOTS = (0, 4096)
"""Where the price of reading a token's KV while decoding changes: caches hold only so much."""
LINEAR = ("prefill_rows", "prefill_pairs", "prefill_context", "decode_rows", "logit_rows")
FEATURES: Mapping[str, str] = MappingProxyType(
    {
        "step": "what every step costs: reading the weights, launching, scheduling",
        **{
            f"tokens_from_{knot}": "each computed token beyond so many, up to the next such price"
            for knot in TOKEN_KNOTS
        },
        **{f"tokens_are_{count}": "a step of exactly so many tokens" for count in SLOW_PRODUCTS},
        "prefill_rows": "each prompt or chunk: gathering its pages, its own attention call",
        "prefill_pairs": "each (query, key) pair of prefill attention",
        "prefill_context": "each token of KV that prefill rows read",
        "decode_rows": "each decoding sequence: its part of batch packing and bookkeeping",
        "logit_rows": "each sampled row: the output head, and choosing the token",
        "decode_context": "each (query, key) pair of decode attention",
        **{
            f"decode_read_from_{knot}": "each token of KV that decode rows read, likewise; shared "
            "ones once, as attention over shared prefixes does"
            for knot in READ_KNOTS
        },
    }
)
"""What a step pays for, each at a price that is at least 0; counts of BatchShape."""
MIN_STEPS = 50
TRUSTED_ERROR = 0.05
"""A step that misses by more counts less in the fit."""
STALLED = 2.0
"""A step that takes so many times what the fit says was held up by something else."""
MAX_PRICE = 1000.0
"""Seconds; whatever costs more is no price of a step's, and products of it get out of hand."""
MIN_STEP_SECONDS, MAX_STEP_SECONDS = 1e-6, 1e5
"""Of a step of 1 and of 1,000 tokens in a file of prices; the simulator's clock, a float64, cannot
tell instants of shorter steps apart after longer ones."""
STEP_KINDS = ("decode", "prefill", "mixed")


class LatencyFileError(ValueError):
    """A file holds no fitted latency model; the message names it and what is wrong."""


@dataclass(frozen=True)
class Residual:
    """How well a fit reproduces the steps of one kind.

    total_error: predicted less measured seconds of all of them together, over measured.
    median_error: median of |predicted - measured| / measured of single steps.
    """

    steps: int
    mean_seconds: float
    total_error: float
    median_error: float


@dataclass(frozen=True, eq=False)
class FittedLatency(LatencyModel):
    """seconds = sum over FEATURES of price * count.

    prices: seconds by feature; what is left out costs nothing.
    """

    prices: Mapping[str, float]

    def __post_init__(self) -> None:
        for name, price in self.prices.items():
            if name not in FEATURES:
                raise ValueError(f"prices: {name!r}: one of {', '.join(FEATURES)} is needed")
            is_number = isinstance(price, int | float) and not isinstance(price, bool)
            if not is_number or not 0 <= price <= MAX_PRICE:
                raise ValueError(
                    f"prices: {name}={price!r}: seconds from 0 to {MAX_PRICE:g} are needed"
                )

    def step_seconds(self, shape: BatchShape) -> float:
        """Seconds of one step."""
        attention = self.prices.get("decode_context", 0.0) * shape.decode_context
        read = shape.decode_context - shape.decode_shared
        for knot, end in zip(READ_KNOTS, (*READ_KNOTS[1:], np.inf), strict=True):
            count = min(max(read - knot, 0), end - knot)
            attention += self.prices.get(f"decode_read_from_{knot}", 0.0) * count
        return attention + self._fixed(shape)

    def decode_run(self, shape: BatchShape, steps: int) -> Floats:
        """float64[steps]: seconds of consecutive decode-only steps, from `shape` on."""
        check_decode_only(shape)
        rows, context = shape.decode_rows, shape.decode_context
        contexts = np.arange(context, context + steps * rows, rows, dtype=np.float64)
        attention = self.prices.get("decode_context", 0.0) * contexts
        read = _segments(contexts - shape.decode_shared, READ_KNOTS)
        for knot, count in zip(READ_KNOTS, read, strict=True):
            attention += self.prices.get(f"decode_read_from_{knot}", 0.0) * count
        return attention + self._fixed(shape)

    def slower(self, factor: float) -> FittedLatency:
        """Every price times `factor`: the same machine at another speed."""
        prices = {name: factor * price for name, price in self.prices.items()}
        return FittedLatency(MappingProxyType(prices))

    def _fixed(self, shape: BatchShape) -> float:
        """All but what grows from step to step while sequences decode."""
        price = self.prices.get
        seconds = price("step", 0.0)
        tokens = left = shape.decode_rows + shape.prefill_tokens
        for knot in reversed(TOKEN_KNOTS):
            beyond = max(0, left - knot)
            seconds += price(f"tokens_from_{knot}", 0.0) * beyond
            left -= beyond
        if tokens in SLOW_PRODUCTS:
            seconds += price(f"tokens_are_{tokens}", 0.0)
        for name in LINEAR:
            seconds += price(name, 0.0) * getattr(shape, name)
        return seconds


def fit_latency(measured: Columns) -> FittedLatency:
    """Fit the prices to steps given by MEASURED_COLUMNS; ValueError for fewer than MIN_STEPS.

    Least squares over relative errors (a step of twice the length may miss by twice as much), no
    price below 0. Steps that something else on the machine disturbed must not move the prices: one
    that misses by more than TRUSTED_ERROR weighs less in the next round (Huber's weights). Steps
    are disturbed in one direction only, so in the end all prices grow together until the steps that
    are not STALLED take as long, all in all, as they did: throughput is made of sums.
    """
    seconds = measured["seconds"]
    if len(seconds) < MIN_STEPS:
        raise ValueError(f"{len(seconds)} steps were measured; a fit needs at least {MIN_STEPS}")
    counts = feature_counts(measured)
    weights = 1 / seconds
    for _ in range(20):
        prices = non_negative_least_squares(counts * weights[:, None], seconds * weights)
        predicted = counts @ prices
        error = np.abs(seconds / predicted - 1)
        weights = np.sqrt(np.minimum(1.0, TRUSTED_ERROR / np.maximum(error, 1e-12))) / predicted
    went_on = seconds < STALLED * predicted
    prices *= seconds[went_on].sum() / predicted[went_on].sum()
    return FittedLatency(MappingProxyType(dict(zip(FEATURES, prices.tolist(), strict=True))))


def feature_counts(measured: Columns) -> Floats:
    """float64[steps, features]: how often each step pays each of FEATURES."""
    tokens = measured["decode_rows"] + measured["prefill_tokens"]
    columns = [
        np.ones(len(tokens)),
        *_segments(tokens, TOKEN_KNOTS),
        *(tokens == count for count in SLOW_PRODUCTS),
        *(measured[name] for name in (*LINEAR, "decode_context")),
        *_segments(measured["decode_context"] - measured["decode_shared"], READ_KNOTS),
    ]
    return np.stack(columns, axis=1).astype(np.float64)


def _segments(values: npt.NDArray[Any], knots: tuple[int, ...]) -> list[npt.NDArray[Any]]:
    """For each knot how much of each value lies between it and the next one."""
    ends = (*knots[1:], np.inf)
    return [np.clip(values - first, 0, end - first) for first, end in zip(knots, ends, strict=True)]


def step_kinds(measured: Columns) -> npt.NDArray[np.str_]:
    """The kind of each step, one of STEP_KINDS."""
    decodes, prefills = measured["decode_rows"] > 0, measured["prefill_rows"] > 0
    return np.where(decodes & prefills, "mixed", np.where(decodes, "decode", "prefill"))


def residuals(model: LatencyModel, measured: Columns) -> dict[str, Residual]:
    """How well the model reproduces the steps, by kind, and `all` together."""
    shapes = zip(*(measured[name].tolist() for name in BatchShape._fields), strict=True)
    predicted = np.array([model.step_seconds(BatchShape(*shape)) for shape in shapes])
    seconds, kinds = measured["seconds"], step_kinds(measured)
    found = {}
    for kind in (*STEP_KINDS, "all"):
        chosen = np.full(len(kinds), True) if kind == "all" else kinds == kind
        if chosen.any():
            said, was = predicted[chosen], seconds[chosen]
            found[kind] = Residual(
                steps=len(was),
                mean_seconds=float(was.mean()),
                total_error=float(said.sum() / was.sum() - 1),
                median_error=float(np.median(np.abs(said / was - 1))),
            )
    return found


def non_negative_least_squares(matrix: Floats, target: Floats) -> Floats:
    """argmin |matrix @ x - target| over x >= 0, float64[columns].

    Lawson and Hanson's active-set method (Solving Least Squares Problems, 1974, chapter 23), on
    columns scaled to length 1.
    """
    lengths = np.linalg.norm(matrix, axis=0)
    lengths[lengths == 0] = 1.0
    scaled = matrix / lengths
    count = matrix.shape[1]
    solution = np.zeros(count)
    free = np.zeros(count, dtype=bool)
    tolerance = 1e-10 * float(np.abs(scaled.T @ target).max(initial=0.0))
    # It ends after a few turns a column; rounding alone could make it go on.
    for _ in range(10 * count):
        gradient = scaled.T @ (target - scaled @ solution)
        gradient[free] = -np.inf
        if free.all() or gradient.max() <= tolerance:
            break
        free[int(gradient.argmax())] = True
        while True:
            trial = np.zeros(count)
            trial[free] = np.linalg.lstsq(scaled[:, free], target, rcond=None)[0]
            falling = free & (trial <= 0)
            if not falling.any():
                break
            # Go towards the trial as far as nothing falls below 0; what reaches 0 stays there.
            drops = np.maximum(solution[falling] - trial[falling], np.finfo(np.float64).tiny)
            solution += float((solution[falling] / drops).min()) * (trial - solution)
            free &= solution > 1e-14 * solution.max()
            solution[~free] = 0.0
        solution = trial
    found: Floats = solution / lengths
    return found


def write_latency(path: Path, latency: FittedLatency, facts: Mapping[str, Any]) -> None:
    """Write the prices as JSON, whole or not at all; facts: of what, and how it was fitted."""
    content = {**facts, "seconds": dict(latency.prices)}
    with whole_file(path) as stream:
        stream.write(f"{json.dumps(content, indent=1)}\n".encode())


def read_latency(path: str | Path) -> tuple[FittedLatency, dict[str, Any]]:
    """The model and the facts that write_latency wrote; LatencyFileError if the file is no such."""
    where = f"latency={str(path)!r}"
    try:
        if not Path(path).exists():
            raise LatencyFileError(f"{where}: no such file; `testbed calibrate` writes one")
        if not Path(path).is_file():
            raise LatencyFileError(f"{where}: a file is needed; `testbed calibrate` writes one")
        latency, facts = _parse(Path(path).read_text(encoding="utf-8"))
    except LatencyFileError:
        raise
    except RecursionError:
        raise LatencyFileError(
            f"{where}: not written by `testbed calibrate`: nested too deeply"
        ) from None
    except (OSError, ValueError) as error:
        raise LatencyFileError(f"{where}: not written by `testbed calibrate`: {error}") from error
    return latency, facts


def _parse(text: str) -> tuple[FittedLatency, dict[str, Any]]:
    """ValueError says what is wrong with the content of a file."""
    content = json.loads(text)
    if not isinstance(content, dict) or not isinstance(content.get("seconds"), dict):
        raise ValueError('an object is needed that has an object named "seconds", of prices')
    latency = FittedLatency(MappingProxyType(content.pop("seconds")))
    for rows in (1, 1000):
        decode = BatchShape(rows, rows, logit_rows=rows)
        prefill = BatchShape(0, 0, 1, rows, rows * (rows + 1) // 2, rows, 1)
        for shape in (decode, prefill):
            seconds = latency.step_seconds(shape)
            if not MIN_STEP_SECONDS <= seconds <= MAX_STEP_SECONDS:
                raise ValueError(
                    f"by these prices a step of {rows} tokens takes {seconds:g} s; "
                    f"{MIN_STEP_SECONDS:g} to {MAX_STEP_SECONDS:g} s are needed"
                )
    return latency, content
