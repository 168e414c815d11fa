"""Prompts that share nothing: only their lengths matter."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt

from testbed.core.request import Request
from testbed.workloads.parameters import (
    MAX_LENGTH,
    require_between,
    require_int,
    require_one_of,
)
from testbed.workloads.tokens import (
    output_tokens,
    prompt_tokens,
    require_token_space,
    require_vocab,
)

Lengths = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class LengthsWorkload:
    """One request for each pair of lengths, with a prompt of its own; all arrive at 0.

    prompt_lengths, output_lengths: tokens, at least 1 each, as many of one as of the other.
    """

    prompt_lengths: Sequence[int] | Lengths
    output_lengths: Sequence[int] | Lengths
    vocab: int | None = None
    seed: int = 0
    name: str = "lengths"
    skipped_lines: ClassVar[int] = 0

    def __post_init__(self) -> None:
        for name in ("prompt_lengths", "output_lengths"):
            object.__setattr__(self, name, _checked_lengths(name, getattr(self, name)))
        if len(self.prompt_lengths) != len(self.output_lengths):
            raise ValueError(
                f"LengthsWorkload.output_lengths has {len(self.output_lengths)} entries; "
                f"{len(self.prompt_lengths)} are needed, one for each of prompt_lengths"
            )
        require_vocab(self)
        require_int(self, "seed", 0)
        require_token_space(self, int(np.sum(self.prompt_lengths)))

    def __len__(self) -> int:
        return len(self.prompt_lengths)

    def __iter__(self) -> Iterator[Request]:
        vocab, seed = self.vocab, self.seed
        prompts = np.asarray(self.prompt_lengths).tolist()
        outputs = np.asarray(self.output_lengths).tolist()
        first = 0
        for i, (prompt, output) in enumerate(zip(prompts, outputs, strict=True)):
            yield Request(
                i, prompt_tokens(first, prompt, vocab, seed), output_tokens(i, output, vocab, seed)
            )
            first += prompt


@dataclass(frozen=True)
class DrawnLengthsWorkload:
    """Prompts that share nothing, with lengths drawn around a mean; all arrive at 0.

    Means and standard deviations (`sd`) are in tokens. distribution: `normal` or `lognormal`, of
    that mean and deviation before rounding; draws below 1 become 1. Prompt and output
    lengths are independent streams. Defaults: the load that simulators of LLM serving are often
    compared on, 1,024 +- 256 tokens in and 256 +- 64 out.
    """

    num_requests: int = 1000
    prompt_mean: float = 1024
    prompt_sd: float = 256
    output_mean: float = 256
    output_sd: float = 64
    distribution: Literal["normal", "lognormal"] = "normal"
    vocab: int | None = None
    seed: int = 0
    name: str = "lengths"
    skipped_lines: ClassVar[int] = 0
    _drawn: LengthsWorkload = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        require_int(self, "num_requests", 1)
        for name in ("prompt_mean", "output_mean"):
            require_between(self, name, 1, MAX_LENGTH)
        for name in ("prompt_sd", "output_sd"):
            require_between(self, name, 0, MAX_LENGTH)
        require_one_of(self, "distribution", ("normal", "lognormal"))
        require_vocab(self)
        require_int(self, "seed", 0)
        prompts, outputs = (
            np.random.default_rng(stream) for stream in np.random.SeedSequence(self.seed).spawn(2)
        )
        drawn = LengthsWorkload(
            self._lengths(prompts, self.prompt_mean, self.prompt_sd),
            self._lengths(outputs, self.output_mean, self.output_sd),
            self.vocab,
            self.seed,
        )
        object.__setattr__(self, "_drawn", drawn)

    def __len__(self) -> int:
        return self.num_requests

    def __iter__(self) -> Iterator[Request]:
        return iter(self._drawn)

    def _lengths(self, generator: np.random.Generator, mean: float, sd: float) -> Lengths:
        draws = generator.standard_normal(self.num_requests)
        if self.distribution == "normal":
            lengths = mean + sd * draws
        else:
            variance = math.log1p((sd / mean) ** 2)
            lengths = mean * np.exp(math.sqrt(variance) * draws - variance / 2)
        return np.maximum(np.rint(lengths), 1).astype(np.int64)


def _checked_lengths(name: str, given: Sequence[int] | Lengths) -> Lengths:
    lengths = np.asarray(given)
    if lengths.ndim != 1 or len(lengths) == 0 or lengths.dtype.kind not in "iu":
        raise ValueError(
            f"LengthsWorkload.{name}: a list of whole numbers, at least one, is needed"
        )
    if lengths.min() < 1 or lengths.max() > MAX_LENGTH:
        at = int(np.argmax((lengths < 1) | (lengths > MAX_LENGTH)))
        raise ValueError(
            f"LengthsWorkload.{name}[{at}]={lengths[at]}: 1 to {MAX_LENGTH} tokens are needed"
        )
    return lengths.astype(np.int64)
