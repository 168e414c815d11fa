from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from testbed.core.batch import BatchShape
from testbed.metrics.forecast import Load, forecast


def per_computed_token(shape: BatchShape) -> float:
    """A second for every prefill token; decoding is free."""
    return float(shape.prefill_tokens)


def per_step(shape: BatchShape) -> float:
    return 1.0


def load_of(prompt: int, output: int, count: int = 100, **limits: Any) -> Load:
    limits = {"pool_tokens": 10**9, "max_running": 10, "chunk_size": 1000} | limits
    return Load(np.full(count, prompt), np.full(count, output), **limits)


def test_where_only_computed_tokens_cost_reuse_saves_what_it_hits() -> None:
    expected = forecast(load_of(100, 10), 0.75, per_computed_token)
    assert expected.prefill_s == 25
    assert expected.cold_prefill_s == 100
    assert expected.prefill_saving == 0.75
    assert expected.throughput_gain == pytest.approx(4.0)
    assert expected.cold_requests_per_s == pytest.approx(1 / 100)


def test_where_every_step_costs_the_same_reuse_gains_nothing_until_chunks_fill() -> None:
    """Ten run at once, one is replaced a step: a request a second. With prompts of 1,980 and a
    budget of 990 beside the ten, ten prefills fill 20 steps."""
    assert forecast(load_of(100, 10), 0.5, per_step).throughput_gain == 1.0
    assert forecast(load_of(100, 10), 0.5, per_step).requests_per_s == pytest.approx(1.0)
    long = forecast(load_of(1980, 10), 0.5, per_step)
    assert long.cold_requests_per_s == pytest.approx(0.5)
    assert long.throughput_gain == pytest.approx(2.0)
    assert long.cold_prefill_s == 2.0


def test_memory_limits_how_many_run() -> None:
    """A pool of 550: five sequences of 110 tokens, or nine of 60 with half the prompt shared."""

    def per_decode_step(shape: BatchShape) -> float:
        return 1.0 if shape.decode_rows else 0.0

    expected = forecast(load_of(100, 10, pool_tokens=550), 0.5, per_decode_step)
    assert expected.cold_requests_per_s == pytest.approx(0.5)
    assert expected.requests_per_s == pytest.approx(0.9)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: forecast(load_of(1, 1), 1.0, per_step), "hit_rate=1.0"),
        (lambda: load_of(0, 1), r"Load\.prompt_tokens=0"),
        (lambda: load_of(1, 1, pool_tokens=0), r"Load\.pool_tokens=0"),
        (lambda: Load(np.ones(2), np.ones(3), 1), "one length of each"),
    ],
)
def test_bad_loads(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
