"""VTC: counters by hand, every pick against a naive accountant, and the bound under contention."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.core.batch import StepResult
from testbed.core.config import SchedulerConfig
from testbed.core.views import SchedulerView, SequenceView
from testbed.policies.scheduling.arrival import Fcfs
from testbed.policies.scheduling.fair import Vtc
from testbed.sim.latency import FixedLatency
from tests.core.building import make_request
from tests.core.stepping import GREEDY, Stepper
from tests.policies.auditing import Audited
from tests.policies.service import ServiceGaps
from tests.sim.worlds import World, small_world, worlds

HEAVY: dict[str, Any] = {"client": "a", "output": 3}
LIGHT: dict[str, Any] = {"client": "b", "output": 1}


def served(stepper: Stepper) -> list[int]:
    return [id for step in stepper.run() for id in step.finished]


def serial(policy: Vtc) -> Stepper:
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
        (
            {"prompt_weight": -1.0},
            "prompt_weight=-1.0, output_weight=2.0: finite numbers of at least 0",
        ),
        ({"output_weight": -0.5}, "prompt_weight=1.0, output_weight=-0.5"),
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


@settings(max_examples=100)
@given(
    st.lists(
        st.tuples(st.sampled_from("aab"), st.integers(1, 12), st.integers(1, 10)),
        min_size=8,
        max_size=40,
    ),
    st.integers(22, 60),
    st.sampled_from([(1.0, 2.0), (1.0, 1.0), (0.25, 1.0), (1.0, 0.0)]),
)
def test_backlogged_clients_stay_within_the_bound(
    jobs: list[tuple[str, int, int]], num_pages: int, prices: tuple[float, float]
) -> None:
    requests = [
        make_request(n, range(100 * n, 100 * n + prompt), output, client=client)
        for n, (client, prompt, output) in enumerate(jobs)
    ]
    prompt_weight, output_weight = prices
    longest = max(prompt for _, prompt, _ in jobs)
    bound = 2 * max(prompt_weight * longest, output_weight * num_pages)
    policy = Vtc(prompt_weight, output_weight)
    gaps = ServiceGaps(policy, lambda sequence, cached, extend: sequence.num_prompt_tokens, prices)
    world = small_world(requests, num_pages, kind="none")
    world = replace(world, scheduler=SchedulerConfig(chunk_size=16), latency=FixedLatency(1.0))
    world.run(policy=lambda: gaps)
    assert gaps.largest <= bound


def test_fcfs_breaks_the_bound_so_that_it_means_something() -> None:
    requests = [
        make_request(n, range(100 * n, 100 * n + 4), 2, client="b" if n % 10 == 9 else "a")
        for n in range(100)
    ]
    prices = (1.0, 2.0)
    for policy, fair in ((Vtc(), True), (Fcfs(), False)):
        gaps = ServiceGaps(policy, lambda sequence, cached, extend: 4, prices)
        small_world(requests, num_pages=20, kind="none").run(policy=lambda one=gaps: one)
        assert (gaps.largest <= 2 * max(1.0 * 4, 2.0 * 20)) is fair
