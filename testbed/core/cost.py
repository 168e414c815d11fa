"""CostModel: what work costs on one replica, as the policies that weigh costs see it."""

from __future__ import annotations

from collections.abc import Callable

from testbed.core.batch import BatchShape


def _computed_tokens(shape: BatchShape) -> float:
    return float(shape.decode_rows + shape.prefill_tokens)


class CostModel:
    """The price of a prefill and of a decode step, alone on an idle replica.

    step_seconds: the step-time model that the simulator runs on; without one a second stands for
    each computed token. flops_per_token: of the layers and a token; flops_per_pair: of attention
    and a (query, key) pair; without a model a FLOP stands for each computed token.
    """

    def __init__(
        self,
        step_seconds: Callable[[BatchShape], float] = _computed_tokens,
        flops_per_token: float = 1.0,
        flops_per_pair: float = 0.0,
    ) -> None:
        self._step_seconds = step_seconds
        self._flops_per_token = flops_per_token
        self._flops_per_pair = flops_per_pair

    def prefill_seconds(self, cached: int, extend: int) -> float:
        """Computing `extend` tokens after `cached` ones, in one step of its own."""
        context = cached + extend
        pairs = _pairs(cached, extend)
        return self._step_seconds(BatchShape(0, 0, 1, extend, pairs, context, 1))

    def decode_seconds(self, rows: int, context: int) -> float:
        """One step of `rows` sequences whose contexts sum up to `context` tokens."""
        return self._step_seconds(
            BatchShape(decode_rows=rows, decode_context=context, logit_rows=rows)
        )

    def prefill_flops(self, cached: int, extend: int) -> float:
        """FLOPs of computing `extend` tokens after `cached` ones."""
        return self._flops_per_token * extend + self._flops_per_pair * _pairs(cached, extend)


def _pairs(cached: int, extend: int) -> int:
    return extend * cached + extend * (extend + 1) // 2
