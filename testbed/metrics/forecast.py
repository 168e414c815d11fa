"""What a hit rate is worth: prefill saved and throughput gained, without a simulation.

A mean-value model of one replica. Its inputs are those of a simulation: the lengths, a hit rate and
a step-time model. What it leaves out is that requests differ in what they hit, that a queue fills
and drains, and that memory is short at times.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from testbed.core.batch import BatchShape

Lengths = npt.NDArray[np.int64]
StepSeconds = Callable[[BatchShape], float]


@dataclass(frozen=True)
class Load:
    """Requests that wait in a queue which never empties, and the replica that serves them.

    prompt_tokens, output_tokens: int64[requests]. pool_tokens: what the KV pool holds. chunk_size:
    tokens of a step. ValueError for lengths below 1 or of different shapes.
    """

    prompt_tokens: Lengths
    output_tokens: Lengths
    pool_tokens: int
    max_running: int = 256
    chunk_size: int = 8192

    def __post_init__(self) -> None:
        prompts, outputs = self.prompt_tokens, self.output_tokens
        if prompts.shape != outputs.shape or prompts.ndim != 1 or not len(prompts):
            raise ValueError(
                f"Load: prompts {prompts.shape} and outputs {outputs.shape}; one length of each "
                "for every request is needed"
            )
        for name in ("prompt_tokens", "output_tokens"):
            if getattr(self, name).min() < 1:
                raise ValueError(f"Load.{name}={getattr(self, name).min()}: at least 1 is needed")
        for name in ("pool_tokens", "max_running", "chunk_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"Load.{name}={getattr(self, name)}: at least 1 is needed")


@dataclass(frozen=True)
class Forecast:
    """At one hit rate, and without any reuse. Prefill: seconds of a request served alone."""

    prefill_s: float
    cold_prefill_s: float
    requests_per_s: float
    cold_requests_per_s: float

    @property
    def prefill_saving(self) -> float:
        """The share of prefill seconds that reuse saves."""
        return 1 - self.prefill_s / self.cold_prefill_s

    @property
    def throughput_gain(self) -> float:
        """Requests per second over those without reuse, while a queue waits."""
        return self.requests_per_s / self.cold_requests_per_s


def forecast(load: Load, hit_rate: float, step_seconds: StepSeconds) -> Forecast:
    """What every request gains if each finds the share `hit_rate` of its prompt cached.

    step_seconds: of a latency model. ValueError unless 0 <= hit_rate < 1.
    """
    if not 0 <= hit_rate < 1:
        raise ValueError(f"hit_rate={hit_rate}: from 0 to below 1 is needed")
    return Forecast(
        _prefill_seconds(load, hit_rate, step_seconds),
        _prefill_seconds(load, 0.0, step_seconds),
        _requests_per_second(load, hit_rate, step_seconds),
        _requests_per_second(load, 0.0, step_seconds),
    )


def _prefill_seconds(load: Load, hit_rate: float, step_seconds: StepSeconds) -> float:
    """Mean seconds from the first chunk of a lone prompt to its first token."""
    prompts, counts = np.unique(load.prompt_tokens, return_counts=True)
    total = 0.0
    for prompt, count in zip(prompts.tolist(), counts.tolist(), strict=True):
        context = int(hit_rate * prompt)
        seconds = 0.0
        while context < prompt:
            tokens = min(load.chunk_size, prompt - context)
            pairs = tokens * context + tokens * (tokens + 1) // 2
            context += tokens
            last = int(context == prompt)
            seconds += step_seconds(BatchShape(0, 0, 1, tokens, pairs, context, last))
        total += count * seconds
    return total / len(load.prompt_tokens)


def _requests_per_second(load: Load, hit_rate: float, step_seconds: StepSeconds) -> float:
    """Finished requests over the seconds in which as many as run at once are replaced.

    That takes as many steps as an output has tokens, or as the prefills fill, whichever is more.
    """
    prompts, outputs = load.prompt_tokens.astype(float), load.output_tokens.astype(float)
    cached = np.floor(hit_rate * prompts)
    computed = prompts - cached
    # A running request holds its own tokens; those that it shares are counted with nobody.
    held = float((computed + outputs).mean())
    running = max(min(load.max_running, len(prompts), int(load.pool_tokens / held)), 1)
    budget = max(load.chunk_size - running, 1)
    prefill_tokens = running * float(computed.mean())
    length = float(outputs.mean())
    steps = max(length, prefill_tokens / budget)
    decodes = max(round(running * length / steps), 1)
    context = decodes * float((prompts + outputs / 2).mean())
    # One replacement a step, more only if there are more than steps.
    with_prefill = min(steps, running * max(1.0, float(computed.mean()) / budget))
    pairs = running * float((computed * cached + computed * (computed + 1) / 2).mean())
    rows = max(round(running / with_prefill), 1)
    mixed = BatchShape(
        decodes,
        round(context),
        rows,
        max(round(prefill_tokens / with_prefill), 1),
        round(pairs / with_prefill),
        round(running * float(prompts.mean()) / with_prefill),
        decodes + rows,
    )
    alone = BatchShape(decodes, round(context), logit_rows=decodes)
    seconds = with_prefill * step_seconds(mixed)
    if steps > with_prefill:
        seconds += (steps - with_prefill) * step_seconds(alone)
    return running / seconds
