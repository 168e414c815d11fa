"""Predicted output lengths, by hand."""

from __future__ import annotations

from typing import Any

import pytest

from testbed.core.request import Sequence
from testbed.core.views import OracleView, SequenceView
from testbed.policies.scheduling.prediction import (
    DeclaredLimit,
    Hint,
    LengthPredictor,
    MovingAverage,
    Oracle,
    build_predictor,
)
from tests.core.building import make_request


def sequence(output: int = 5, id: int = 1, **fields: Any) -> SequenceView:
    """A sequence that has generated all of its output."""
    one = Sequence(make_request(id, [1, 2], output, **fields), 0)
    one.num_joined_generated = output
    return OracleView(one)


def test_the_declared_limit_is_no_true_length() -> None:
    assert DeclaredLimit().predict(sequence(5, max_new_tokens=90)) == 90


def test_a_hint_counts_where_there_is_one() -> None:
    assert Hint().predict(sequence(5, max_new_tokens=90, expected_output=7)) == 7
    assert Hint().predict(sequence(5, max_new_tokens=90)) == 90


def test_the_average_forgets_a_fifth_with_each_request_and_knows_clients_apart() -> None:
    average = MovingAverage()
    predictions = []
    for output in (10, 20, 20, 1):
        predictions.append(average.predict(sequence(output, client="a")))
        average.learn(sequence(output, client="a"))
    # 10; (40 + 20) / 5 = 12; (48 + 20) / 5 = 13.6; then (54.4 + 1) / 5 = 11.08.
    assert predictions == [0, 10, 12, 14]
    assert average.predict(sequence(client="a")) == 11
    assert average.predict(sequence(client="b")) == 0


def test_an_oracle_knows() -> None:
    assert Oracle().predict(sequence(5, max_new_tokens=90)) == 5


def test_a_blurred_oracle_errs_within_its_range_and_alike_for_everybody() -> None:
    lengths = [Oracle(0.5, seed=1).predict(sequence(100, id)) for id in range(300)]
    assert lengths == [Oracle(0.5, seed=1).predict(sequence(100, id)) for id in range(300)]
    assert lengths != [Oracle(0.5, seed=2).predict(sequence(100, id)) for id in range(300)]
    assert 50 <= min(lengths) < 60 and 140 < max(lengths) <= 150
    assert 95 < sum(lengths) / 300 < 105
    assert min(Oracle(0.9).predict(sequence(1, id)) for id in range(50)) == 1


def test_only_an_oracle_is_told() -> None:
    one = SequenceView(Sequence(make_request(1, [1], 3), 0))
    with pytest.raises(TypeError, match="declares itself an oracle"):
        Oracle().predict(one)


@pytest.mark.parametrize(
    ("prediction", "kind"),
    [("declared", DeclaredLimit), ("hint", Hint), ("average", MovingAverage)],
)
def test_predictors_by_name(prediction: str, kind: type[LengthPredictor]) -> None:
    assert type(build_predictor(prediction)) is kind


def test_parameters_are_checked() -> None:
    with pytest.raises(ValueError, match="prediction='oracle': declared, hint or average"):
        build_predictor("oracle")
    with pytest.raises(ValueError, match=r"error=1\.0: at least 0 and less than 1"):
        Oracle(1.0)
