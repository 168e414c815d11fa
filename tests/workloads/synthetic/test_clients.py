from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from testbed.workloads import Client, MultiClientWorkload


def arrivals(workload: MultiClientWorkload, name: str) -> list[float]:
    return [r.arrival for r in workload if r.client == name]


def test_the_default_is_the_vtc_overload_experiment() -> None:
    """1.5 and 3 requests per second, evenly spaced, for 360 s: 540 and 1,080 of them."""
    workload = MultiClientWorkload()
    assert Counter(r.client for r in workload) == {"client-0": 540, "client-1": 1080}
    assert len(workload) == 1620
    for name, rate in (("client-0", 1.5), ("client-1", 3.0)):
        times = np.array(arrivals(workload, name))
        assert np.allclose(np.diff(times), 1 / rate)
        assert 0 <= times[0] < 1 / rate
    assert {(len(r.prompt), r.max_new_tokens) for r in workload} == {(256, 256)}


def test_requests_are_merged_in_arrival_order() -> None:
    workload = MultiClientWorkload(
        [Client("a", 2.0, cv=1.0), Client("b", 3.0, cv=1.0)], duration=50.0
    )
    times = [r.arrival for r in workload]
    assert times == sorted(times) and times[0] >= 0 and times[-1] < 50.0
    assert [r.id for r in workload] == list(range(len(workload)))
    assert times == [r.arrival for r in workload]
    assert {r.client for r in list(workload)[:10]} == {"a", "b"}


def test_a_system_prompt_is_shared_by_one_clients_requests_alone() -> None:
    workload = MultiClientWorkload(
        [
            Client("a", 1.0, prompt_tokens=4, system_tokens=3, weight=2.0),
            Client("b", 1.0, prompt_tokens=5, output_tokens=7, system_tokens=2),
            Client("c", 1.0, prompt_tokens=6),
        ],
        duration=4.0,
    )
    systems = {"a": [0, 1, 2], "b": [3, 4], "c": []}
    seen: list[int] = []
    for request in workload:
        system = systems[request.client]
        assert request.prompt[: len(system)].tolist() == system
        seen += request.prompt[len(system) :].tolist()
    assert sorted(seen) == list(range(5, 5 + 4 * (4 + 5 + 6)))
    assert {(r.client, r.weight, r.max_new_tokens) for r in workload} == {
        ("a", 2.0, 256),
        ("b", 1.0, 7),
        ("c", 1.0, 256),
    }


@pytest.mark.parametrize("cv", [0.5, 1.0, 3.0])
def test_random_gaps_have_the_rate_and_variation_asked_for(cv: float) -> None:
    times = arrivals(MultiClientWorkload([Client("a", 5.0, 1, 1, cv=cv)], 8000.0), "a")
    gaps = np.diff(times, prepend=0.0)
    # Some 40,000 gaps: the count's relative standard error is cv / 200.
    assert len(times) == pytest.approx(40_000, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.1)


@pytest.mark.parametrize("cv", [0.0, 1.0])
def test_arrivals_are_paired(cv: float) -> None:
    a, b = Client("a", 2.0, cv=cv), Client("b", 1.0, cv=cv)
    alone = arrivals(MultiClientWorkload([a], 20.0), "a")
    assert arrivals(MultiClientWorkload([a, b], 20.0), "a") == alone
    assert arrivals(MultiClientWorkload([a, b], 10.0), "a") == [t for t in alone if t < 10.0]
    twice = arrivals(MultiClientWorkload([Client("a", 4.0, cv=cv)], 10.0), "a")
    assert twice == [t / 2 for t in alone]
    assert arrivals(MultiClientWorkload([a], 20.0, seed=1), "a") != alone


def test_a_vocab_bounds_the_tokens() -> None:
    workload = MultiClientWorkload([Client("a", 1.0, system_tokens=8)], 5.0, vocab=300)
    prompts = [r.prompt for r in workload]
    assert max(p.max() for p in prompts) < 300
    assert len({tuple(p[:8].tolist()) for p in prompts}) == 1
    assert len({tuple(p.tolist()) for p in prompts}) == 5


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"name": ""}, r"Client\.name='': a name is needed"),
        ({"rate": 0}, r"Client\.rate=0: a finite number above 0"),
        ({"prompt_tokens": 0}, r"Client\.prompt_tokens=0"),
        ({"output_tokens": 1.0}, r"Client\.output_tokens=1\.0"),
        ({"weight": 0}, r"Client\.weight=0"),
        ({"system_tokens": -1}, r"Client\.system_tokens=-1"),
        ({"cv": -1}, r"Client\.cv=-1"),
        ({"cv": 1000}, r"Client\.cv=1000"),
    ],
)
def test_bad_clients(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Client(**({"name": "a", "rate": 1.0} | changed))


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"clients": []}, r"MultiClientWorkload\.clients=\[\]: at least one is needed"),
        ({"clients": [Client("a", 1), Client("a", 2)]}, r"clients=\['a', 'a'\]"),
        ({"clients": [{"name": "a"}]}, r"clients: \{'name': 'a'\} is not a Client"),
        ({"duration": 0}, r"MultiClientWorkload\.duration=0"),
        (
            {"clients": [Client("a", 1e-6, cv=1.0)], "duration": 1e-3},
            r"MultiClientWorkload\.duration=0\.001: nobody sends a request",
        ),
        (
            {"clients": [Client("a", 1.0, system_tokens=2**31)], "duration": 5},
            r"MultiClientWorkload: \d+ distinct prompt tokens",
        ),
    ],
)
def test_bad_parameters(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MultiClientWorkload(**parameters)
