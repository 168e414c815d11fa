"""LocalityFair: VTC's fairness between clients, LPM inside them, rides where they are allowed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.core.config import SchedulerConfig
from testbed.core.policy import SchedulingPolicy
from testbed.core.request import Request
from testbed.core.views import SchedulerView, SequenceView
from testbed.policies.scheduling.cache_aware import Lpm
from testbed.policies.scheduling.locality_fair import LocalityFair
from testbed.policies.scheduling.vtc import Vtc
from testbed.sim import FixedLatency
from tests.core.building import make_request
from tests.core.stepping import Stepper
from tests.policies.auditing import Audited
from tests.policies.service import ServiceGaps
from tests.sim.worlds import World, small_world, worlds


def picks(policy: SchedulingPolicy, requests: list[tuple[str, list[int]]], **switches: Any) -> str:
    """Clients in the order in which they are admitted, one at a time; output of one token."""
    stepper = Stepper(policy=policy, max_running=1, **switches)
    for client, prompt in requests:
        stepper.add(prompt, client=client)
    admitted = ""
    for step in stepper.run():
        admitted += "".join(stepper.sequences[id].request.client for id, _, _ in step.prefills)
    return admitted


def test_the_least_served_client_goes_with_its_longest_match() -> None:
    stepper = Stepper(policy=LocalityFair(), max_running=1)
    for client, prompt in (
        ("a", [1, 2, 3, 4]),
        ("a", [9, 9]),
        ("a", [1, 2, 3, 5]),
        ("b", [7, 7, 7]),
        ("b", [8, 8, 8, 8, 8, 8]),
    ):
        stepper.add(prompt, client=client)
    # a: 4 + 2 = 6; b: 3 + 2 = 5, then 8 more; a: its match of 3 tokens before its older request.
    assert [step.prefills[0][0] for step in stepper.run()] == [0, 3, 4, 2, 1]


def test_a_window_lets_a_warm_client_ride_within_it() -> None:
    requests = [
        ("a", [1, 2, 3, 4, 5]),
        ("a", [1, 2, 3, 4, 6]),
        ("a", [1, 2, 3, 4, 7]),
        ("b", [8, 8, 8, 8, 8]),
        ("b", [9, 9, 9, 9, 9]),
    ]
    assert picks(LocalityFair(), requests) == "ababa"
    # U = 1 * 5 + 2 * 100; each request gives 5 + 2. R = 8.2 lets a ride at 7 with b at 0, and at 14
    # with b at 7.
    assert picks(LocalityFair(window=0.04), requests, num_pages=100) == "aabab"
    assert picks(LocalityFair(window=1.0), requests, num_pages=100) == "aaabb"


def test_half_a_match_is_no_ride() -> None:
    requests = [
        ("a", [1, 2, 3, 4]),
        ("a", [1, 2, 5, 6]),
        ("b", [8, 8, 8, 8]),
    ]
    assert picks(LocalityFair(window=1.0), requests) == "aba"


def test_clients_pay_by_weight() -> None:
    stepper = Stepper(policy=LocalityFair(), max_running=1)
    for number in range(6):
        client = "ab"[number % 2]
        stepper.add([10 * number, 1], client=client, weight={"a": 1.0, "b": 2.0}[client])
    admitted = [stepper.sequences[step.prefills[0][0]].request.client for step in stepper.run()]
    # Each request gives 2 + 2: 4 to a, 2 to b.
    assert "".join(admitted) == "abbaba"


def test_a_client_that_returns_is_lifted() -> None:
    policy = LocalityFair()
    stepper = Stepper(policy=policy, max_running=1)
    stepper.add([1, 1], client="a")
    stepper.run()
    assert policy.counter("a") == 4
    stepper.add([2, 2], client="b")
    # Nobody was queued: b starts where a, who left last, stands.
    assert policy.counter("b") == 4
    stepper.run()
    stepper.add([3, 3, 3], client="b")
    stepper.add([4, 4], client="a")
    assert policy.counter("a") == policy.counter("b") == 8


class Accountant(Audited):
    """Keeps every counter by the letter of the rule and picks by looking at everybody."""

    def __init__(self, window: float) -> None:
        super().__init__(LocalityFair(window), self.pick)
        self.window = window
        self.counters: dict[str, float] = {}
        self.queued: dict[str, int] = {}
        self.left_last: str | None = None
        self.longest = 0
        self.pool = 0
        self.weights: list[float] = []

    def on_start(self, view: SchedulerView) -> None:
        self.pool = view.cache.num_free_pages * view.cache.page_size
        super().on_start(view)

    def pick(self, view: SchedulerView, left: Sequence[SequenceView]) -> SequenceView:
        assert isinstance(self.policy, LocalityFair)
        for name, counter in self.counters.items():
            assert self.policy.counter(name) == pytest.approx(counter)
        clients = sorted({s.client for s in left}, key=lambda c: (self.policy.counter(c), c))  # type: ignore[attr-defined]
        floor = self.policy.counter(clients[0])
        reach = self.window * (self.longest + 2 * self.pool) / min(self.weights)
        best = {
            c: min(
                (s for s in left if s.client == c), key=lambda s: (-s.num_matched_tokens, s.index)
            )
            for c in clients
        }
        riders = [
            s
            for c, s in best.items()
            if self.policy.counter(c) <= floor + reach and 2 * s.num_matched_tokens > s.num_tokens
        ]
        return min(riders, key=lambda s: (-s.num_matched_tokens, s.index), default=best[clients[0]])

    def on_arrival(self, sequence: SequenceView) -> Any:
        client = sequence.client
        self.longest = max(self.longest, sequence.num_prompt_tokens)
        self.weights.append(sequence.weight)
        counter = self.counters.get(client, 0.0)
        others = [self.counters[name] for name, count in self.queued.items() if count]
        if not self.queued.get(client):
            if others:
                counter = max(counter, min(others))
            elif self.left_last is not None:
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
@given(worlds(replicas=1), st.sampled_from([0.0, 0.05, 0.3, 10.0]))
def test_every_pick_is_the_accountant_s(world: World, window: float) -> None:
    world.run(policy=lambda: Accountant(window))


def shared_jobs(jobs: list[tuple[str, int, int, int]]) -> list[Request]:
    """Requests of (client, document, own tokens, output); a document is four tokens."""
    return [
        make_request(
            n,
            [*([document] * 4), *range(100 * n + 10, 100 * n + 10 + own)],
            output,
            client=client,
        )
        for n, (client, document, own, output) in enumerate(jobs)
    ]


JOBS = st.lists(
    st.tuples(st.sampled_from("aab"), st.integers(0, 3), st.integers(1, 8), st.integers(1, 10)),
    min_size=8,
    max_size=40,
)


def check_bound(
    jobs: list[tuple[str, int, int, int]], num_pages: int, window: float, chunk_size: int
) -> None:
    requests = shared_jobs(jobs)
    longest = max(len(request.prompt) for request in requests)
    bound = 2 * (1 + window) * (longest + 2 * num_pages)
    policy = LocalityFair(window)
    gaps = ServiceGaps(policy, lambda s, cached, extend: s.num_prompt_tokens, (1.0, 2.0))
    world = small_world(requests, num_pages)
    world = replace(
        world, scheduler=SchedulerConfig(chunk_size=chunk_size), latency=FixedLatency(1.0)
    )
    world.run(policy=lambda: gaps)
    assert gaps.largest <= bound


@settings(max_examples=200)
@given(JOBS, st.integers(24, 60), st.sampled_from([0.0, 0.1, 0.5]), st.sampled_from([4, 16, 64]))
def test_backlogged_clients_stay_within_the_bound(
    jobs: list[tuple[str, int, int, int]], num_pages: int, window: float, chunk_size: int
) -> None:
    check_bound(jobs, num_pages, window, chunk_size)


@pytest.mark.slow
@settings(max_examples=3000, deadline=None)
@given(JOBS, st.integers(24, 60), st.sampled_from([0.0, 0.1, 0.5]), st.sampled_from([4, 16, 64]))
def test_three_thousand_backlogs_stay_within_the_bound(
    jobs: list[tuple[str, int, int, int]], num_pages: int, window: float, chunk_size: int
) -> None:
    check_bound(jobs, num_pages, window, chunk_size)


def documents_of_one_s_own() -> list[Request]:
    """Four clients, all at once, in turns; each asks 60 times, of three documents in turn."""
    requests = []
    for n in range(240):
        document = 10 * (n % 4) + (n // 4) % 3
        prompt = [*([document] * 40), *range(1000 + 10 * n, 1010 + 10 * n)]
        requests.append(make_request(n, prompt, 2, client="abcd"[n % 4]))
    return requests


def hits_and_gap(policy: SchedulingPolicy, num_pages: int) -> tuple[int, float]:
    watch = ServiceGaps(policy, lambda s, cached, extend: s.num_prompt_tokens, (1.0, 2.0))
    world = small_world(documents_of_one_s_own(), num_pages, max_running=2)
    record = world.run(policy=lambda: watch)
    return int(record.requests["cached_tokens"].sum()), watch.largest


def test_where_a_document_of_each_client_fits_it_has_lpm_s_hits_and_vtc_s_gap() -> None:
    # Each of twelve documents is computed once; nobody is ever a whole request ahead of another,
    # where LPM serves the 20 requests of a document at once.
    request = 50 + 2 * 2
    assert hits_and_gap(LocalityFair(), 200) == (240 * 40 - 12 * 40, request)
    assert hits_and_gap(Lpm(), 200) == (240 * 40 - 12 * 40, 20 * request)
    assert hits_and_gap(Vtc(), 200) == (0, request)


def test_where_they_do_not_fit_turns_cost_hits_and_a_window_buys_them_back() -> None:
    most, _ = hits_and_gap(Lpm(), 130)
    narrow, small = hits_and_gap(LocalityFair(), 130)
    wide, large = hits_and_gap(LocalityFair(window=2.0), 130)
    assert 0 < narrow < 0.6 * most and wide > 0.95 * most
    assert small < large <= 2 * 3 * (50 + 2 * 130)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"window": -1.0}, r"window=-1\.0: a finite number"),
        ({"window": float("inf")}, "window=inf"),
        ({"prompt_weight": float("nan")}, "prompt_weight=nan"),
        ({"output_weight": -2.0}, r"output_weight=-2\.0"),
    ],
)
def test_parameters_are_checked(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LocalityFair(**parameters)
