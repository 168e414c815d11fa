"""Requests refuse what could never run; sequences start empty."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from testbed.core.request import Request, Sequence, State
from tests.core.building import make_request, tokens_of


def test_the_declared_limit_defaults_to_the_scripted_length() -> None:
    assert make_request(0, [1], 7).max_new_tokens == 7
    assert make_request(0, [1], 7, max_new_tokens=9).max_new_tokens == 9


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"prompt": tokens_of([])}, "request 3: prompt is empty"),
        ({"output": None}, "request 3: max_new_tokens is 0; at least 1"),
        ({"output": tokens_of([])}, "request 3: output is empty"),
        ({"output": None, "max_new_tokens": -1}, "request 3: max_new_tokens is -1"),
        ({"weight": 0.0}, "request 3: weight is 0.0"),
        ({"weight": float("nan")}, "request 3: weight is nan"),
        ({"weight": float("inf")}, "request 3: weight is inf"),
        ({"arrival": -1.0}, "request 3: arrival is -1.0"),
        ({"arrival": float("nan")}, "request 3: arrival is nan"),
        ({"retain_for": -1.0}, "request 3: retain_for is -1.0"),
        ({"pin": -1}, "request 3: pin is -1"),
        ({"deadline": float("nan")}, "request 3: deadline is nan"),
        ({"expected_output": 0}, "request 3: expected_output is 0"),
    ],
)
def test_a_request_that_could_never_run_is_an_error(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Request(**{"id": 3, "prompt": tokens_of([1]), "output": tokens_of([2]), **fields})


def test_a_scripted_output_must_hold_a_token() -> None:
    # It would never stop: the first token is one more than the script holds.
    with pytest.raises(ValueError, match="request 3: output is empty"):
        Request(3, tokens_of([1]), output=tokens_of([]), max_new_tokens=4)


@pytest.mark.parametrize("field", ["prompt", "output"])
def test_token_ids_are_int32(field: str) -> None:
    # Pages are compared by their bytes: other types would never match, or match half a page.
    wide = {"prompt": tokens_of([1]), "output": tokens_of([2]), field: np.array([1, 2, 3])}
    with pytest.raises(ValueError, match=f"request 3: {field}"):
        Request(3, wide["prompt"], wide["output"])


def test_a_sequence_stops_at_its_script_or_its_limit() -> None:
    assert Sequence(make_request(0, [1], 5), 0).num_output_tokens == 5
    assert Sequence(make_request(0, [1], 5, max_new_tokens=3), 0).num_output_tokens == 3
    assert Sequence(make_request(0, [1], 5, max_new_tokens=8), 0).num_output_tokens == 5
    real = Sequence(Request(0, tokens_of([1]), max_new_tokens=4), 0)
    assert (real.num_output_tokens, real.generated) == (4, [])


def test_output_tokens_are_the_script_s_or_the_model_s() -> None:
    scripted = Sequence(make_request(0, [1], [7, 8, 9]), 0)
    scripted.num_joined_generated = 2
    assert scripted.output_tokens().tolist() == [7, 8]
    real = Sequence(Request(0, tokens_of([1]), max_new_tokens=4), 0)
    real.generated = [5, 6]
    assert real.output_tokens().tolist() == [5, 6]
    assert real.output_tokens().dtype == np.int32


def test_a_sequence_says_what_it_is() -> None:
    sequence = Sequence(make_request(4, [1, 2]), 0)
    assert sequence.state is State.WAITING
    assert repr(sequence) == "Sequence(request=4, waiting, 2 prompt + 0 generated tokens)"
