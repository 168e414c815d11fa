"""Requests that a policy delays or refuses, as the simulator meets them."""

from __future__ import annotations

from typing import Any

import pytest

from testbed.core.policy import Delay, Refuse
from testbed.core.views import SequenceView
from testbed.policies.scheduling.arrival import Fcfs
from tests.core.building import make_request
from tests.sim.worlds import plain_run, table


class Doorkeeper(Fcfs):
    """Answers the first arrivals of each request from a table by request id."""

    def __init__(self, answers: dict[int, list[Delay | Refuse | None]]) -> None:
        super().__init__()
        self.answers = {id: list(those) for id, those in answers.items()}
        self.asked: list[tuple[float, int]] = []

    def on_start(self, view: Any) -> None:
        self.view = view

    def on_arrival(self, sequence: SequenceView) -> Delay | Refuse | None:
        self.asked.append((self.view.now, sequence.id))
        mine = self.answers.get(sequence.id, [])
        return mine.pop(0) if mine else None


@pytest.mark.parametrize("skip", [True, False])
def test_a_delayed_request_wakes_an_idle_replica(skip: bool) -> None:
    door = Doorkeeper({0: [Delay(4.5), Delay(6.0)]})
    record = plain_run([make_request(0, [1])], policy=lambda: door, skip_quiet_steps=skip)
    assert door.asked == [(0.0, 0), (4.5, 0), (6.0, 0)]
    assert record.requests["admitted_s"].tolist() == [6.0]


@pytest.mark.parametrize("skip", [True, False])
def test_a_newcomer_does_not_wait_for_a_delayed_one(skip: bool) -> None:
    door = Doorkeeper({0: [Delay(50.0)]})
    requests = [make_request(0, [1]), make_request(1, [2], 3, arrival=10.0)]
    record = plain_run(requests, policy=lambda: door, skip_quiet_steps=skip)
    assert record.requests["request"].tolist() == [1, 0]
    assert record.requests["admitted_s"].tolist() == [10.0, 50.0]


@pytest.mark.parametrize("skip", [True, False])
def test_a_delayed_request_joins_a_running_batch_at_a_step_s_start(skip: bool) -> None:
    door = Doorkeeper({1: [Delay(3.5)]})
    requests = [make_request(0, [1], 9), make_request(1, [2], arrival=0.5)]
    record = plain_run(requests, policy=lambda: door, skip_quiet_steps=skip)
    assert record.requests["admitted_s"].tolist() == [4.0, 0.0]
    assert door.asked == [(0.0, 0), (0.5, 1), (4.0, 1)]


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("busy", [True, False])
def test_a_delayed_request_that_is_refused_in_the_end_leaves(skip: bool, busy: bool) -> None:
    door = Doorkeeper({0: [Delay(3.0), Refuse("too late")]})
    requests = [make_request(0, [1]), make_request(1, [2], 6 if busy else 1)]
    record = plain_run(requests, policy=lambda: door, skip_quiet_steps=skip)
    row = next(row for row in table(record.requests) if row["request"] == 0)
    assert (row["status"], row["refusal"]) == ("refused", "too late")
    assert len(record.requests["request"]) == 2


def test_a_refusing_policy_is_recorded() -> None:
    door = Doorkeeper({0: [Refuse("no")]})
    record = plain_run([make_request(0, [1]), make_request(1, [2])], policy=lambda: door)
    assert record.requests["status"].tolist() == ["refused", "finished"]
    assert record.requests["refusal"].tolist() == ["no", ""]
