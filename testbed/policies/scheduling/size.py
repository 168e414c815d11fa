"""Admission by how much work a request is."""

from __future__ import annotations

from testbed.core.views import SchedulerView, SequenceView
from testbed.policies.scheduling.arrival import OnMisfit
from testbed.policies.scheduling.deduplication import DeduplicatingPolicy
from testbed.policies.scheduling.prediction import (
    LengthPredictor,
    Oracle,
    Prediction,
    build_predictor,
)
from testbed.policies.scheduling.ranked import MatchRankedPolicy, RankedPolicy


class Lof(RankedPolicy):
    """Longest output first, by the declared limit, ties by arrival (SGLang's `lof`).

    For offline throughput: long outputs start early and none is left alone at the end. Declared
    limits are not real lengths, and short requests starve under load.
    """

    may_starve = True

    def rank(self, sequence: SequenceView) -> tuple[int]:
        """Minus the declared limit."""
        return (-sequence.max_new_tokens,)


class Sjf(RankedPolicy):
    """Shortest job first, by prompt length, ties by arrival; cached or not (inference-sim's `sjf`).

    Long prompts starve under load.
    """

    may_starve = True

    def rank(self, sequence: SequenceView) -> tuple[int]:
        """The prompt's length."""
        return (sequence.num_prompt_tokens,)


class SjfUncached(DeduplicatingPolicy):
    """Fewest tokens to compute first, max(1, known - matched), ties by arrival (SGLang 0.5.23's
    `shortest-prefill-first`).

    dedupe_check, dedupe_share: see DeduplicatingPolicy. Without SGLang's cut of the running chunk
    so that shorter requests fit beside it. Cold prompts starve under load.
    """

    may_starve = True

    def first_rank(self, sequence: SequenceView) -> tuple[int]:
        """Tokens that a prefill would compute now."""
        return (max(1, sequence.num_tokens - sequence.num_matched_tokens),)


class _ShortestRemaining(MatchRankedPolicy):
    may_starve = True

    def __init__(self, predictor: LengthPredictor, on_misfit: OnMisfit) -> None:
        super().__init__(on_misfit)
        self._predictor = predictor
        self._predicted: dict[int, int] = {}

    def on_start(self, view: SchedulerView) -> None:
        """Take the prices."""
        self._cost = view.cost

    def rank(self, sequence: SequenceView) -> tuple[float]:
        """Seconds to its last token if it had the replica to itself."""
        cached = min(sequence.num_matched_tokens, sequence.num_tokens - 1)
        left = max(1, self._predicted[sequence.index] - sequence.num_generated_tokens)
        prefill = self._cost.prefill_seconds(cached, sequence.num_tokens - cached)
        # The prefill yields one token; the others are decoded with a context that grows.
        context = sequence.num_tokens + left // 2
        return (prefill + (left - 1) * self._cost.decode_seconds(1, context),)

    def on_arrival(self, sequence: SequenceView) -> None:
        """Predict, and enter the ranking."""
        self._predicted[sequence.index] = self._predictor.predict(sequence)
        super().on_arrival(sequence)

    def on_finish(self, sequence: SequenceView) -> None:
        """See how long it really was."""
        del self._predicted[sequence.index]
        self._predictor.learn(sequence)


class Srpt(_ShortestRemaining):
    """Shortest remaining processing time first: uncached prefill, then predicted decoding.

    In seconds, as the replica's cost model has them for the request alone (Schrage 1968, on
    predicted lengths), ties by arrival. What runs is left alone, as preempting it would lose its
    memory; whoever ran out of memory ranks by what is left. prediction: `declared` goes by the
    output limit, `hint` by expected_output, `average` by the client's requests so far; asked at
    arrival. Long requests starve under load.
    """

    def __init__(self, prediction: Prediction = "declared", on_misfit: OnMisfit = "stop") -> None:
        super().__init__(build_predictor(prediction), on_misfit)


class SrptOracle(_ShortestRemaining):
    """Srpt that is told true output lengths, blurred by up to `error` (0.5: half to one and a half
    times the truth)."""

    oracle = True

    def __init__(self, error: float = 0.0, seed: int = 0, on_misfit: OnMisfit = "stop") -> None:
        super().__init__(Oracle(error, seed), on_misfit)
