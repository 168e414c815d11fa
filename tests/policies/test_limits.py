"""Limits at arrival: who is refused, who is let in when, by hand and against a naive count."""

from __future__ import annotations

from math import nextafter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.policies.scheduling.limits import RpmLimit, TokenBucket
from tests.core.building import make_request
from tests.core.stepping import Stepper
from tests.sim.worlds import plain_run


def arrive(policy: Any, times: list[float], **fields: Any) -> Stepper:
    """Requests with a token of prompt and one of output at these times, without serving any."""
    stepper = Stepper(policy=policy)
    for time in times:
        stepper.now = time
        stepper.add([1], arrival=time, **fields)
    return stepper


def states(stepper: Stepper) -> list[str]:
    return [sequence.state.value for sequence in stepper.sequences.values()]


def releases(stepper: Stepper) -> dict[int, float]:
    return {s.request.id: until for until, _, s in stepper.scheduler.delayed}


def test_more_than_the_limit_in_a_window_is_refused_and_does_not_count() -> None:
    stepper = arrive(RpmLimit(limit=2), [0, 10, 59, 60, 60.5, 70.5, 71])
    expected = ["waiting", "waiting", "refused", "refused", "waiting", "waiting", "refused"]
    assert states(stepper) == expected
    assert stepper.sequences[2].refusal == "over 2 requests in 60 s"


def test_clients_are_limited_apart() -> None:
    stepper = arrive(RpmLimit(limit=1), [0])
    stepper.add([1], client="other")
    assert states(stepper) == ["waiting", "waiting"]


def test_a_delayed_request_comes_when_the_window_has_passed_in_arrival_order() -> None:
    stepper = arrive(RpmLimit(limit=2, window=10.0, action="delay"), [0, 4, 5, 6, 7])
    first, second = nextafter(10.0, 99), nextafter(14.0, 99)
    third = nextafter(first + 10.0, 99)
    assert states(stepper) == ["waiting", "waiting", "delayed", "delayed", "delayed"]
    assert releases(stepper) == {2: first, 3: second, 4: third}


@settings(max_examples=50)
@given(
    st.lists(st.sampled_from([0.0, 0.25, 1.0, 3.0]), min_size=1, max_size=30),
    st.integers(1, 4),
    st.sampled_from(["refuse", "delay"]),
)
def test_no_window_ever_holds_more_than_the_limit(
    gaps: list[float], limit: int, action: Any
) -> None:
    times = np.cumsum(gaps).tolist()
    stepper = arrive(RpmLimit(limit, 5.0, action), times)
    until = releases(stepper)
    let_in = [
        until.get(id, s.request.arrival)
        for id, s in stepper.sequences.items()
        if s.state.value != "refused"
    ]
    assert let_in == sorted(let_in)
    for time in let_in:
        assert sum(time - 5.0 <= other <= time for other in let_in) <= limit
    if action == "delay":
        assert len(let_in) == len(times)


def test_whoever_is_let_in_is_served_in_arrival_order() -> None:
    requests = [make_request(n, [n], 1, arrival=n / 4, client="ab"[n % 2]) for n in range(8)]
    record = plain_run(
        requests, policy=lambda: RpmLimit(limit=1, window=3.0, action="delay")
    ).requests
    finish = dict(zip(record["request"].tolist(), record["finish_s"].tolist(), strict=True))
    for first, then in ((0, 2), (2, 4), (4, 6), (1, 3), (3, 5), (5, 7)):
        assert finish[then] - finish[first] > 2.0
    assert finish[6] > 9.0


def test_a_bucket_empties_and_refills() -> None:
    # 2 tokens each; 5 in the bucket, one more a second.
    policy = TokenBucket(rate=1.0, burst=5.0, action="refuse")
    # 5, 3, 1 (refused), 1.5 after half a second (refused), 2 after one, then 0.
    stepper = arrive(policy, [0, 0, 0, 0.5, 1.0, 1.5])
    expected = ["waiting", "waiting", "refused", "refused", "waiting", "refused"]
    assert states(stepper) == expected
    assert stepper.sequences[3].refusal == "costs 2 tokens, 1.5 are left"


def test_a_bucket_never_holds_more_than_its_burst() -> None:
    stepper = arrive(TokenBucket(1.0, 5.0, "refuse"), [0, 0, 100, 100, 100])
    assert states(stepper) == ["waiting", "waiting", "waiting", "waiting", "refused"]


def test_delays_add_up_in_arrival_order() -> None:
    stepper = arrive(TokenBucket(rate=0.5, burst=3.0), [0, 0, 1])
    # 3 - 2 = 1; the second lacks 1: 2 s. At 1 s the bucket is at -0.5; the third lacks 2.5: 5 s.
    assert releases(stepper) == {1: 2.0, 2: 1.0 + 5.0}


def test_prices_weights_and_hints() -> None:
    policy = TokenBucket(1.0, 10.0, "refuse", prompt_weight=2.0, output_weight=3.0)
    stepper = Stepper(policy=policy)
    # 2 * 2 + 3 * 2 = 10, all there is; with a weight of 2 there is twice as much.
    stepper.add([1, 2], output=9, max_new_tokens=9, expected_output=2)
    stepper.add([1], output=1)
    for _ in range(4):
        stepper.add([1], output=1, client="heavy", weight=2.0)
    stepper.add([1], output=1, client="heavy", weight=2.0)
    assert states(stepper) == ["waiting", "refused", *4 * ["waiting"], "refused"]


def test_what_costs_more_than_the_bucket_holds_is_refused_not_delayed() -> None:
    stepper = Stepper(policy=TokenBucket(1.0, 10.0))
    stepper.add(range(10), output=1)
    assert stepper.sequences[0].refusal == "costs 11 tokens, the bucket holds 10"
    stepper.add(range(9), output=1)
    assert states(stepper) == ["refused", "waiting"]


@pytest.mark.parametrize(
    ("kind", "parameters", "message"),
    [
        (RpmLimit, {"limit": 0}, "limit=0: at least 1 is needed"),
        (RpmLimit, {"window": 0.0}, r"window=0\.0: seconds, more than 0, are needed"),
        (RpmLimit, {"limit": 10**30}, "at least 1 is needed, at most 1000000"),
        (RpmLimit, {"window": 1e300}, r"window=1e\+300: seconds, more than 0, .* at most 1e\+09"),
        (RpmLimit, {"action": "drop"}, "action='drop': refuse or delay is needed"),
        (TokenBucket, {"action": "drop"}, "action='drop': refuse or delay is needed"),
        (TokenBucket, {"rate": 0.0}, r"rate=0\.0: a number from 1e-09 to 1e\+15"),
        (TokenBucket, {"rate": 1e-320}, r"rate=1e-320: a number from 1e-09 to 1e\+15"),
        (TokenBucket, {"burst": -1.0}, r"burst=-1\.0: a number from 1e-09 to 1e\+15"),
        (TokenBucket, {"burst": float("inf")}, "burst=inf: a number from 1e-09"),
        (TokenBucket, {"prompt_weight": -1.0}, r"prompt_weight=-1\.0: a finite number of at least"),
    ],
)
def test_parameters_are_checked(kind: Any, parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kind(**parameters)
