"""Step-time models: how long a batch of a given shape takes, in closed form.

Every model gives a run of consecutive decode steps at once, bit for bit what it gives step by
step, so that a simulator may skip over them without moving a single time stamp.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Protocol

import numpy as np
import numpy.typing as npt

from testbed.core.batch import Batch, BatchShape, StepResult
from testbed.sim.hardware import Accelerator, Efficiency, ModelShape


class LatencyModel(Protocol):
    """Seconds of a step, from the shape of its batch alone."""

    def step_seconds(self, shape: BatchShape) -> float:
        """Seconds of one step."""
        ...

    def decode_run(self, shape: BatchShape, steps: int) -> npt.NDArray[np.float64]:
        """float64[steps]: seconds of consecutive decode-only steps, from `shape` on.

        decode_context grows by decode_rows a step; each value equals step_seconds bit for bit.
        ValueError if the shape has prefill rows or no decode rows.
        """
        ...


class Roofline(LatencyModel):
    """A five-constant roofline of a dense transformer on `tp` equal cards.

    seconds = t0 + c * rows + smooth_max(F / (mfu * P), W / (e * B))
            + max(A / (mfu_attention * P), KV / (e * B)) + all-reduce

    F: FLOPs of the layers for every computed token and of lm_head for every sampled row. W: weight
    bytes, read once a step. A: attention FLOPs. KV: bytes of keys and values read. P, B: peak
    FLOP/s and memory bandwidth of all cards. smooth_max(x, y) = (x^4 + y^4)^(1/4).

    All-reduce: two a layer when tp > 1, each link_latency plus the time that a card's link takes to
    send 2 (tp - 1) / tp of the activations (a ring); nothing overlaps it. The constants were fitted
    at tp 1, without it. Prefill and decode share one max(), so that a mixed batch hides one part's
    memory reads behind the other's arithmetic.

    shared_prefix_decode: decode rows read pages that they share once (Hydragen, cascade attention).
    """

    def __init__(
        self,
        model: ModelShape,
        accelerator: Accelerator,
        efficiency: Efficiency,
        tp: int = 1,
        shared_prefix_decode: bool = False,
    ) -> None:
        """ValueError if the model or the accelerator cannot be used at this tp."""
        model.check_tp(tp)
        if tp > 1 and accelerator.link_bandwidth == 0:
            raise ValueError(f"tp={tp}: {accelerator.name} has no link to a peer; 1 is needed")
        matmul_flops = efficiency.mfu * accelerator.peak_flops * tp
        attention_flops = efficiency.mfu_attention * accelerator.peak_flops * tp
        bandwidth = efficiency.bandwidth * accelerator.memory_bandwidth * tp
        self._token = model.linear_flops_per_token / matmul_flops
        self._logit = model.lm_head_flops_per_row / matmul_flops
        self._weight4 = (model.weight_bytes_per_step / bandwidth) ** 4
        self._pair = model.attention_flops_per_pair / attention_flops
        self._kv = model.kv_bytes_per_token / bandwidth
        self._decode = np.array(max(self._pair, self._kv))
        self._shares = shared_prefix_decode
        self._row = efficiency.row_overhead
        self._step = efficiency.step_overhead
        self._traffic = 0.0
        if tp > 1:
            reduces = 2 * model.num_layers
            activation_bytes = model.hidden_size * model.bytes_per_parameter
            sent = 2 * (tp - 1) / tp * activation_bytes
            self._step += reduces * accelerator.link_latency
            self._traffic = reduces * sent / accelerator.link_bandwidth

    def step_seconds(self, shape: BatchShape) -> float:
        """Seconds of one step."""
        decodes, decode_context, prefills, tokens, pairs, prefill_context, logits, shared = shape
        attention = self._pair * (pairs + decode_context)
        spared = shared if self._shares else 0
        kv = self._kv * (prefill_context + decode_context - spared)
        fixed = self._without_attention(decodes + prefills, decodes + tokens, logits)
        return fixed + (attention if attention > kv else kv)

    def decode_run(self, shape: BatchShape, steps: int) -> npt.NDArray[np.float64]:
        """float64[steps]: seconds of consecutive decode-only steps, from `shape` on."""
        check_decode_only(shape)
        rows = shape.decode_rows
        context = shape.decode_context
        # Contexts below 2^53 are exact as floats. numpy takes a 0-d array sooner than a Python
        # float, which is most of the cost of a short run.
        contexts = np.arange(context, context + steps * rows, rows, dtype=np.float64)
        fixed = np.array(self._without_attention(rows, rows, shape.logit_rows))
        seconds: npt.NDArray[np.float64]
        if self._shares and shape.decode_shared:
            kv = (contexts - shape.decode_shared) * self._kv
            seconds = np.maximum(contexts * self._pair, kv) + fixed
        else:
            # One slope does for step_seconds' max(): rounding is monotone, so the larger
            # coefficient gives the larger product.
            seconds = contexts * self._decode + fixed
        return seconds

    def _without_attention(self, rows: int, tokens: int, logit_rows: int) -> float:
        compute = self._token * tokens + self._logit * logit_rows
        square = compute * compute
        matmul = sqrt(sqrt(square * square + self._weight4))
        return self._step + self._row * rows + self._traffic * tokens + matmul


@dataclass(frozen=True, slots=True)
class FixedLatency(LatencyModel):
    """seconds = max(minimum, computed tokens * seconds_per_token): unit time, for exact tests."""

    seconds_per_token: float = 1.0
    minimum: float = 0.0

    def __post_init__(self) -> None:
        for name in ("seconds_per_token", "minimum"):
            value = getattr(self, name)
            if not value >= 0:
                raise ValueError(f"{name}={value}: at least 0 is needed")

    def step_seconds(self, shape: BatchShape) -> float:
        """Seconds of one step."""
        tokens = shape.decode_rows + shape.prefill_tokens
        return max(self.minimum, tokens * self.seconds_per_token)

    def decode_run(self, shape: BatchShape, steps: int) -> npt.NDArray[np.float64]:
        """float64[steps]: the same seconds every step."""
        check_decode_only(shape)
        return np.full(steps, self.step_seconds(shape), dtype=np.float64)


class LatencyExecutor:
    """Runs a batch by asking a latency model; what is sampled stays with the requests' outputs."""

    def __init__(self, model: LatencyModel) -> None:
        self.model = model

    def execute(self, batch: Batch) -> StepResult:
        """The step's seconds, no tokens."""
        return StepResult(self.model.step_seconds(batch.shape))


def check_decode_only(shape: BatchShape) -> None:
    if shape.prefill_rows or shape.decode_rows < 1:
        raise ValueError(f"{shape}: a decode run needs decode rows and no prefill rows")
