"""VTC and LCF: counters by hand, with predictions too; every pick against a naive accountant."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.core.batch import StepResult
from testbed.core.policy import SchedulingPolicy
from testbed.core.views import SchedulerView, SequenceView
from testbed.policies.scheduling.vtc import Lcf, Vtc, VtcOracle
from tests.core.stepping import GREEDY, Stepper
from tests.policies.auditing import Audited
from tests.policies.hinted import hinted_worlds
from tests.sim.worlds import World, worlds

HEAVY: dict[str, Any] = {"client": "a", "output": 3}
LIGHT: dict[str, Any] = {"client": "b", "output": 1}


def served(stepper: Stepper) -> list[int]:
    return [id for step in stepper.run() for id in step.finished]


def serial(policy: SchedulingPolicy) -> Stepper:
    return Stepper(policy=policy, max_running=1)


def test_the_least_served_client_goes_next_and_names_break_ties() -> None:
    stepper = serial(Vtc())
    for number in range(2):
        stepper.add(range(10 * number, 10 * number + 5), **HEAVY)
    for number in range(3):
        stepper.add(range(100 + 10 * number, 102 + 10 * number), **LIGHT)
    # a is charged 5 + 2 * 3 for each, b 2 + 2 * 1: after 11, b may go to 4, 8 and 12.
    assert served(stepper) == [0, 2, 3, 4, 1]


def test_weights_divide_and_prices_multiply() -> None:
    stepper = serial(Vtc(prompt_weight=2.0, output_weight=1.0))
    for number in range(2):
        stepper.add(range(10 * number, 10 * number + 5), weight=2.0, **HEAVY)
    for number in range(3):
        stepper.add(range(100 + 10 * number, 102 + 10 * number), weight=1.0, **LIGHT)
    # a: (2 * 5 + 3) / 2 = 6.5 each; b: 2 * 2 + 1 = 5 each.
    policy = stepper.policy
    assert isinstance(policy, Vtc)
    assert served(stepper) == [0, 2, 3, 1, 4]
    assert (policy.counter("a"), policy.counter("b")) == (13.0, 15.0)


def test_a_prompt_is_charged_at_admission_cached_or_not_and_tokens_as_they_come() -> None:
    policy = Vtc()
    stepper = serial(policy)
    stepper.add([1, 2, 3, 4], client="a")
    stepper.run()
    assert policy.counter("a") == 4 + 2
    stepper.add([1, 2, 3, 4, 5], client="a", output=3)
    scheduler = stepper.scheduler
    counters = []
    for _ in range(3):
        batch = scheduler.schedule(0.0)
        assert batch is not None
        counters.append(policy.counter("a"))
        scheduler.commit(batch, StepResult(1.0), 0.0)
    counters.append(policy.counter("a"))
    assert counters == [6 + 5, 6 + 5 + 2, 6 + 5 + 4, 6 + 5 + 6]


def test_a_client_that_returns_is_lifted_to_the_least_of_those_queued() -> None:
    policy = Vtc()
    stepper = serial(policy)
    for number in range(4):
        stepper.add(range(10 * number, 10 * number + 5), client="b", output=3)
    while policy.counter("b") < 22 or stepper.scheduler.running:
        stepper.step()
    stepper.add([50], client="c")
    stepper.add([60], client="a")
    assert (policy.counter("b"), policy.counter("c"), policy.counter("a")) == (22, 22, 22)
    # All equal: by name. Neither earned anything by coming late.
    assert served(stepper) == [5, 2, 4, 3]


def test_a_lift_never_lowers_a_counter() -> None:
    policy = Vtc()
    stepper = serial(policy)
    stepper.add(range(50), client="a")
    stepper.run()
    stepper.add([90], client="b", output=2)
    stepper.add(range(100, 103), client="a")
    assert policy.counter("a") == 52
    assert policy.counter("b") == 52
    policy = Vtc(rule="artifact")
    stepper = serial(policy)
    stepper.add(range(50), client="a")
    stepper.run()
    stepper.add([90], client="b", output=2)
    stepper.add(range(100, 103), client="a")
    assert (policy.counter("a"), policy.counter("b")) == (52, 0)


@pytest.mark.parametrize(("rule", "counter"), [("paper", 9.0), ("artifact", 0.0)])
def test_if_nobody_is_queued_the_rules_differ(rule: Any, counter: float) -> None:
    policy = Vtc(rule=rule)
    stepper = serial(policy)
    stepper.add(range(5), client="z", output=2)
    stepper.run()
    stepper.add([7], client="new")
    # z left the queue last; it had 5 + 2 * 2.
    assert policy.counter("new") == counter


def test_a_preempted_sequence_is_not_charged_again_and_goes_before_its_client_s_others() -> None:
    policy = Vtc()
    stepper = Stepper(num_pages=8, policy=policy, max_running=2, **GREEDY)
    stepper.add([1, 2, 3], output=4, client="a")
    victim = stepper.add([11, 12, 13], output=3, client="b")
    stepper.add([21, 22], output=2, client="b")
    stepper.run()
    assert victim.num_preemptions == 1
    assert policy.counter("a") == 3 + 2 * 4
    assert policy.counter("b") == 3 + 2 * 3 + 2 + 2 * 2
    admitted = [row[3] for row in stepper.log.rows if row[2] == "admit"]
    assert admitted == [0, 1, 1, 2]


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"prompt_weight": -1.0}, r"prompt_weight=-1\.0: a finite number of at least 0"),
        ({"output_weight": -0.5}, r"output_weight=-0\.5: a finite number of at least 0"),
        ({"square_weight": float("nan")}, "square_weight=nan: a finite number of at least 0"),
        ({"prediction": "x"}, "prediction='x': declared, hint or average is needed"),
        ({"rule": "x"}, "rule='x': paper or artifact is needed"),
    ],
)
def test_parameters_are_checked(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Vtc(**parameters)


class Accountant(Audited):
    """Keeps every client's counter by the letter of the rules and picks by looking at them all."""

    def __init__(self, rule: Any) -> None:
        super().__init__(Vtc(rule=rule), self.pick)
        self.lifts_when_idle = rule == "paper"
        self.counters: dict[str, float] = {}
        self.queued: dict[str, int] = {}
        self.left_last: str | None = None

    def pick(self, view: SchedulerView, left: list[SequenceView]) -> SequenceView:
        client = min({s.client for s in left}, key=lambda name: (self.counters[name], name))
        assert isinstance(self.policy, Vtc)
        for name, counter in self.counters.items():
            assert self.policy.counter(name) == counter
        return next(s for s in left if s.client == client)

    def on_arrival(self, sequence: SequenceView) -> Any:
        client = sequence.client
        counter = self.counters.get(client, 0.0)
        others = [self.counters[name] for name, count in self.queued.items() if count]
        if not self.queued.get(client):
            if others:
                counter = max(counter, min(others))
            elif self.lifts_when_idle and self.left_last is not None:
                counter = max(counter, self.counters[self.left_last])
        self.counters[client] = counter
        self.queued[client] = self.queued.get(client, 0) + 1
        return super().on_arrival(sequence)

    def on_admit(self, sequence: SequenceView, cached: int, extend: int) -> None:
        self.queued[sequence.client] -= 1
        if not self.queued[sequence.client]:
            self.left_last = sequence.client
        if not sequence.num_preemptions:
            self.counters[sequence.client] += sequence.num_prompt_tokens / sequence.weight
        super().on_admit(sequence, cached, extend)

    def on_tokens(self, sequence: SequenceView, count: int) -> None:
        self.counters[sequence.client] += 2.0 * count / sequence.weight
        super().on_tokens(sequence, count)

    def on_preempt(self, sequence: SequenceView) -> None:
        self.queued[sequence.client] += 1
        super().on_preempt(sequence)


@settings(max_examples=200)
@given(worlds(replicas=1), st.sampled_from(["paper", "artifact"]))
def test_every_pick_is_the_accountant_s(world: World, rule: str) -> None:
    world.run(policy=lambda: Accountant(rule))


def counters(policy: Any, stepper: Stepper, client: str = "a") -> list[float]:
    """The client's counter after each step."""
    seen = []
    while stepper.step() is not None:
        seen.append(policy.counter(client))
    return seen


@pytest.mark.parametrize(
    ("expected_output", "expected"),
    [
        # 4 + 2 * 2 at once, then 2 for each of the third and fourth.
        (2, [8, 8, 10, 12]),
        # 4 + 2 * 4, all of it.
        (4, [12, 12, 12, 12]),
        # 4 + 2 * 9, of which 2 * 5 is given back.
        (9, [22, 22, 22, 12]),
    ],
)
def test_a_prediction_is_charged_ahead_and_set_right(
    expected_output: int, expected: list[float]
) -> None:
    policy = Vtc(prediction="hint")
    stepper = serial(policy)
    stepper.add(range(4), output=4, client="a", expected_output=expected_output)
    assert counters(policy, stepper) == expected


def test_the_declared_limit_may_be_charged_ahead() -> None:
    policy = Vtc(prediction="declared")
    stepper = serial(policy)
    stepper.add(range(4), output=1, client="a", max_new_tokens=50)
    assert counters(policy, stepper) == [4 + 2]


def test_a_moving_average_starts_from_nothing() -> None:
    policy = Vtc(prediction="average")
    stepper = serial(policy)
    stepper.add(range(4), output=3, client="a")
    assert counters(policy, stepper) == [6, 8, 10]
    stepper.add(range(10, 14), output=2, client="a")
    # 4 + 2 * 3 ahead; one too many.
    assert counters(policy, stepper) == [20, 18]


def test_an_oracle_charges_the_truth_at_once() -> None:
    policy = VtcOracle()
    stepper = serial(policy)
    stepper.add(range(4), output=3, client="a", max_new_tokens=90)
    assert counters(policy, stepper) == [10, 10, 10]
    assert VtcOracle.oracle and not Vtc.oracle


def test_a_refund_makes_a_client_the_least_served_at_once() -> None:
    policy = Vtc(prediction="hint")
    stepper = serial(policy)
    stepper.add([1], output=1, client="a", expected_output=50)
    stepper.add([2], output=1, client="a", expected_output=50)
    stepper.add(range(10, 20), output=1, client="b", expected_output=1)
    stepper.add(range(20, 30), output=1, client="b", expected_output=1)
    # a is charged 101 and gets 98 back; b 12. Then a is at 3.
    assert served(stepper) == [0, 2, 1, 3]


def profiled(prompt: int, output: int) -> float:
    return 2 * prompt + 3 * output + 0.5 * prompt * output + 0.25 * output**2 + 10


@pytest.mark.parametrize(("predicted", "charged"), [(1, [1, 2, 3]), (3, [3, 3, 3]), (7, [7, 7, 3])])
def test_a_profiled_cost_is_charged_for_what_is_known(predicted: int, charged: list[int]) -> None:
    prices = {"prompt_weight": 2.0, "output_weight": 3.0, "product_weight": 0.5}
    policy = Vtc(**prices, square_weight=0.25, request_weight=10.0, prediction="hint")  # type: ignore[arg-type]
    stepper = serial(policy)
    stepper.add(range(4), output=3, client="a", weight=2.0, expected_output=predicted)
    assert counters(policy, stepper) == [profiled(4, output) / 2 for output in charged]


def test_lcf_lets_a_newcomer_catch_up_where_vtc_does_not() -> None:
    orders = {}
    for policy in (Lcf(), Vtc()):
        stepper = serial(policy)
        stepper.add(range(50), client="a")
        stepper.run()
        for number in range(3):
            stepper.add([100 + number], client="a")
            stepper.add(range(200 + 20 * number, 210 + 20 * number), client="b")
        orders[type(policy).__name__] = served(stepper)
    # a is at 52. b's cost 12 each: it starts from nothing, or from 52 as a.
    assert orders == {"Lcf": [2, 4, 6, 1, 3, 5], "Vtc": [1, 2, 3, 5, 4, 6]}


class PredictingAccountant(Audited):
    """Charges max(predicted, produced) of every unfinished request, what was produced of others."""

    def __init__(self) -> None:
        super().__init__(Vtc(prediction="hint"), self.pick)
        self.lifted: dict[str, float] = {}
        self.started: dict[str, list[SequenceView]] = {}
        self.finished: dict[str, float] = {}
        self.queued: dict[str, int] = {}
        self.left_last: str | None = None

    def counter(self, client: str) -> float:
        charged = self.finished.get(client, 0.0)
        for s in self.started.get(client, []):
            output = max(s.expected_output or s.max_new_tokens, s.num_generated_tokens)
            charged += (s.num_prompt_tokens + 2.0 * output) / s.weight
        return self.lifted.get(client, 0.0) + charged

    def pick(self, view: SchedulerView, left: list[SequenceView]) -> SequenceView:
        assert isinstance(self.policy, Vtc)
        for name in self.queued:
            assert self.policy.counter(name) == self.counter(name)
        client = min({s.client for s in left}, key=lambda name: (self.counter(name), name))
        return next(s for s in left if s.client == client)

    def on_arrival(self, sequence: SequenceView) -> Any:
        client = sequence.client
        if not self.queued.get(client):
            others = [self.counter(name) for name, count in self.queued.items() if count]
            floor = min(others, default=0.0 if self.left_last is None else None)
            if floor is None:
                assert self.left_last is not None
                floor = self.counter(self.left_last)
            behind = max(0.0, floor - self.counter(client))
            self.lifted[client] = self.lifted.get(client, 0.0) + behind
        self.queued[client] = self.queued.get(client, 0) + 1
        return super().on_arrival(sequence)

    def on_admit(self, sequence: SequenceView, cached: int, extend: int) -> None:
        self.queued[sequence.client] -= 1
        if not self.queued[sequence.client]:
            self.left_last = sequence.client
        if not sequence.num_preemptions:
            self.started.setdefault(sequence.client, []).append(sequence)
        super().on_admit(sequence, cached, extend)

    def on_finish(self, sequence: SequenceView) -> None:
        self.started[sequence.client].remove(sequence)
        cost = (sequence.num_prompt_tokens + 2.0 * sequence.num_generated_tokens) / sequence.weight
        self.finished[sequence.client] = self.finished.get(sequence.client, 0.0) + cost
        super().on_finish(sequence)

    def on_preempt(self, sequence: SequenceView) -> None:
        self.queued[sequence.client] += 1
        super().on_preempt(sequence)


@settings(max_examples=200)
@given(hinted_worlds())
def test_every_pick_is_the_predicting_accountant_s(world: World) -> None:
    world.run(policy=PredictingAccountant)
