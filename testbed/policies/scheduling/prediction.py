"""How many tokens a request will generate, as somebody predicts it at arrival or admission."""

from __future__ import annotations

from abc import ABC, abstractmethod
from random import Random
from typing import Literal

from testbed.core.views import OracleView, SequenceView
from testbed.policies.seeds import check_seed

Prediction = Literal["declared", "hint", "average"]
"""What those that are no oracles may go by; see build_predictor."""


class LengthPredictor(ABC):
    """Predicts a request's output length in tokens."""

    @abstractmethod
    def predict(self, sequence: SequenceView) -> int:
        """Output tokens, at least 0; asked once a request."""

    def learn(self, sequence: SequenceView) -> None:
        """The sequence produced its last token."""


class DeclaredLimit(LengthPredictor):
    """Takes max_new_tokens at its word."""

    def predict(self, sequence: SequenceView) -> int:
        """The declared limit."""
        return sequence.max_new_tokens


class Hint(LengthPredictor):
    """The request's expected_output; its declared limit where nobody predicts."""

    def predict(self, sequence: SequenceView) -> int:
        """The hint."""
        return sequence.expected_output or sequence.max_new_tokens


class MovingAverage(LengthPredictor):
    """Per client, an exponential average of its finished requests, (4 * old + newest) / 5; the
    first one sets it, and it is 0 before that (VTC artifact, `vtc_pred_len`)."""

    WINDOW = 5

    def __init__(self) -> None:
        self._average: dict[str, float] = {}

    def predict(self, sequence: SequenceView) -> int:
        """The client's average in whole tokens, so that charges are exact (our reading)."""
        return round(self._average.get(sequence.client, 0.0))

    def learn(self, sequence: SequenceView) -> None:
        """Move the client's average."""
        newest = sequence.num_generated_tokens
        old = self._average.get(sequence.client)
        if old is None:
            self._average[sequence.client] = newest
        else:
            self._average[sequence.client] = (old * (self.WINDOW - 1) + newest) / self.WINDOW


class Oracle(LengthPredictor):
    """The truth, or a uniform draw from (1 - error, 1 + error) times it (VTC artifact,
    `predict_range`). A draw depends on the seed and the request's id alone, so that every policy
    is told the same."""

    def __init__(self, error: float = 0.0, seed: int = 0) -> None:
        if not 0 <= error < 1:
            raise ValueError(f"error={error}: at least 0 and less than 1 is needed")
        check_seed(seed)
        self._error = error
        self._seed = seed

    def predict(self, sequence: SequenceView) -> int:
        """The true length, blurred."""
        if not isinstance(sequence, OracleView):
            raise TypeError("only a policy that declares itself an oracle is told true lengths")
        length = sequence.num_output_tokens
        if not self._error:
            return length
        factor = Random(f"{self._seed} {sequence.id}").uniform(1 - self._error, 1 + self._error)
        return max(1, round(length * factor))


def build_predictor(prediction: str) -> LengthPredictor:
    """`declared`: max_new_tokens. `hint`: expected_output. `average`: per client."""
    if prediction == "declared":
        return DeclaredLimit()
    if prediction == "hint":
        return Hint()
    if prediction == "average":
        return MovingAverage()
    raise ValueError(f"prediction={prediction!r}: declared, hint or average is needed")
