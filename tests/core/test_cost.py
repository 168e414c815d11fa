"""Costs by hand: in tokens by default, by a step-time model where there is one."""

from __future__ import annotations

from testbed.core.batch import BatchShape
from testbed.core.cost import CostModel


def test_without_a_model_every_computed_token_counts_one() -> None:
    cost = CostModel()
    assert cost.prefill_seconds(cached=100, extend=7) == 7
    assert cost.decode_seconds(rows=3, context=500) == 3
    assert cost.prefill_flops(cached=100, extend=7) == 7


def test_a_step_time_model_is_asked_for_one_prefill_or_one_decode_step() -> None:
    asked: list[BatchShape] = []

    def step_seconds(shape: BatchShape) -> float:
        asked.append(shape)
        return 0.5

    cost = CostModel(step_seconds, flops_per_token=10.0, flops_per_pair=2.0)
    assert (cost.prefill_seconds(4, 3), cost.decode_seconds(2, 30)) == (0.5, 0.5)
    # Queries at positions 4, 5, 6 see 5 + 6 + 7 = 18 keys; 7 are read.
    assert asked == [BatchShape(0, 0, 1, 3, 18, 7, 1), BatchShape(2, 30, 0, 0, 0, 0, 2)]
    assert cost.prefill_flops(4, 3) == 3 * 10 + 18 * 2
