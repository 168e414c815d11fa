"""LOF, SJF, shortest uncached first and SRPT: orders by hand, every pick against the rule."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings

from testbed.core.batch import BatchShape
from testbed.core.config import CacheConfig, SchedulerConfig
from testbed.core.cost import CostModel
from testbed.core.policy import SchedulingPolicy
from testbed.core.scheduler import Scheduler
from testbed.core.views import OracleView, SchedulerView, SequenceView
from testbed.policies.eviction.recency import Lru
from testbed.policies.scheduling.size import Lof, Sjf, SjfUncached, Srpt, SrptOracle
from tests.core.building import make_request
from tests.core.stepping import Stepper
from tests.policies.auditing import Audited, order
from tests.policies.hinted import hinted_worlds
from tests.sim.worlds import World


def order_of(policy: SchedulingPolicy, stepper: Stepper) -> list[int]:
    return order(policy, stepper.scheduler._view)


def test_the_longest_declared_output_goes_first() -> None:
    policy = Lof("skip")
    stepper = Stepper(policy=policy)
    for limit in (3, 9, 1, 9):
        stepper.add([1], output=1, max_new_tokens=limit)
    assert order_of(policy, stepper) == [1, 3, 0, 2]


def test_more_than_two_hundred_waiting_make_no_difference() -> None:  # row 89
    policy = Lof("skip")
    stepper = Stepper(policy=policy)
    for limit in range(1, 202):
        stepper.add([1], output=1, max_new_tokens=limit)
    assert order_of(policy, stepper) == list(range(200, -1, -1))


def test_the_shortest_prompt_goes_first_cached_or_not() -> None:
    policy = Sjf("skip")
    stepper = Stepper(policy=policy)
    stepper.add(range(50))
    stepper.run()
    for prompt in (range(50), [7, 8], range(40), [5, 6]):
        stepper.add(prompt)
    assert order_of(policy, stepper) == [2, 4, 3, 1]


def test_fewest_uncached_tokens_go_first() -> None:  # row 105
    policy = SjfUncached("skip")
    stepper = Stepper(num_pages=10_000, policy=policy)
    stepper.add(range(4096))
    stepper.run()
    stepper.add(range(9000, 9032))
    stepper.add([*range(4096), *range(8000, 8016)])
    stepper.add(range(6000, 7024))
    stepper.add(range(7000, 7032))
    # 32, 4112 - 4096, 1024 and 32 again.
    assert order_of(policy, stepper) == [2, 1, 4, 3]


def test_duplicates_of_a_cold_beginning_go_last() -> None:  # row 105
    policy = SjfUncached("skip", dedupe_check=32, dedupe_share=32)
    stepper = Stepper(num_pages=10_000, policy=policy)
    stepper.add([*range(40), 1])
    stepper.add([*range(40), 2, 3])
    stepper.add(range(500, 600))
    # The second shares 40 cold tokens with the first: it waits until those are computed.
    assert order_of(policy, stepper) == [0, 2, 1]
    without = SjfUncached("skip")
    plain = Stepper(num_pages=10_000, policy=without)
    for prompt in ([*range(40), 1], [*range(40), 2, 3], range(500, 600)):
        plain.add(prompt)
    assert order_of(without, plain) == [0, 1, 2]


def test_whoever_was_preempted_must_compute_its_output_again() -> None:  # row 105
    policy = SjfUncached("skip")
    stepper = Stepper(policy=policy, kind="none")
    stepper.add([1, 2], output=5)
    for _ in range(4):
        stepper.step()
    stepper.scheduler._preempt(stepper.sequences[0])
    # Two of prompt and four of output, against five.
    stepper.add(range(10, 15))
    assert order_of(policy, stepper) == [1, 0]


def priced(policy: SchedulingPolicy, prefill: float, decode: float) -> Scheduler:
    """A replica where a prefilled token and a decode step cost so many seconds."""

    def seconds(shape: BatchShape) -> float:
        return prefill * shape.prefill_tokens + decode * (shape.decode_rows > 0)

    cache = CacheConfig(1000, 1)
    return Scheduler(cache, SchedulerConfig(), policy, Lru(), cost=CostModel(seconds))


def test_the_shortest_remaining_time_goes_first() -> None:
    policy = Srpt(on_misfit="skip")
    scheduler = priced(policy, prefill=1.0, decode=10.0)
    # 30; 1 + 3 * 10 = 31; 25 + 10 = 35; 29.
    for id, (prompt, limit) in enumerate([(30, 1), (1, 4), (25, 2), (29, 1)]):
        prompt_tokens = range(100 * id, 100 * id + prompt)
        scheduler.add(make_request(id, prompt_tokens, 1, max_new_tokens=limit), 0.0)
    assert order(policy, scheduler._view) == [3, 0, 1, 2]


def test_predictions_change_the_order_and_the_truth_does_too() -> None:
    requests = [
        make_request(0, range(5), 9, max_new_tokens=50, expected_output=20),
        make_request(1, range(10, 15), 30, max_new_tokens=40, expected_output=10),
    ]
    policies = {
        "declared": Srpt(on_misfit="skip"),
        "hint": Srpt("hint", on_misfit="skip"),
        "true": SrptOracle(on_misfit="skip"),
    }
    orders = {}
    for name, policy in policies.items():
        scheduler = priced(policy, 1.0, 1.0)
        for request in requests:
            scheduler.add(request, 0.0)
        orders[name] = order(policy, scheduler._view)
    assert orders == {"declared": [1, 0], "hint": [1, 0], "true": [0, 1]}


def test_a_client_s_average_is_known_once_it_has_finished_one() -> None:
    policy = Srpt("average", on_misfit="skip")
    stepper = Stepper(policy=policy, max_running=1)
    stepper.add([1], output=9, client="a")
    stepper.run()
    stepper.add([2], output=9, client="a")
    stepper.add([3, 4, 5], output=9, client="b")
    # 1 + 8 steps for a; 3 tokens and nothing known of b's outputs.
    assert order_of(policy, stepper) == [2, 1]


def by_size(policy: SchedulingPolicy) -> Any:
    def remaining(view: SchedulerView, s: SequenceView) -> float:
        predicted = s.max_new_tokens
        if isinstance(policy, SrptOracle):
            assert isinstance(s, OracleView)
            predicted = s.num_output_tokens
        left = max(1, predicted - s.num_generated_tokens)
        cached = min(view.cache.peek(s.tokens, s.namespace), s.num_tokens - 1)
        decode = view.cost.decode_seconds(1, s.num_tokens + left // 2)
        prefill = view.cost.prefill_seconds(cached, s.num_tokens - cached)
        return prefill + (left - 1) * decode

    def rank(view: SchedulerView, s: SequenceView) -> float:
        if isinstance(policy, Lof):
            return -s.max_new_tokens
        if isinstance(policy, Sjf):
            return s.num_prompt_tokens
        if isinstance(policy, SjfUncached):
            return max(1, s.num_tokens - view.cache.peek(s.tokens, s.namespace))
        return remaining(view, s)

    def pick(view: SchedulerView, left: list[SequenceView]) -> SequenceView:
        return min(left, key=lambda s: (rank(view, s), s.index))

    return pick


class AuditedSize(Audited):
    def __init__(self, policy: SchedulingPolicy) -> None:
        super().__init__(policy, by_size(policy))


class AuditedOracle(AuditedSize):
    oracle = True


@pytest.mark.parametrize("kind", [Lof, Sjf, SjfUncached, Srpt, SrptOracle])
@settings(max_examples=50)
@given(world=hinted_worlds())
def test_every_proposal_is_the_smallest_of_all(kind: Any, world: World) -> None:
    audited = AuditedOracle if kind is SrptOracle else AuditedSize
    world.run(policy=lambda: audited(kind()))
    world.run(policy=lambda: audited(kind(on_misfit="skip")))


def test_the_oracle_is_one_and_the_others_are_not() -> None:
    assert SrptOracle.oracle
    assert not (Srpt.oracle or Lof.oracle or Sjf.oracle or SjfUncached.oracle)


def test_parameters_are_checked() -> None:
    with pytest.raises(ValueError, match="prediction='best'"):
        Srpt("best")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"error=-0\.1"):
        SrptOracle(-0.1)
    with pytest.raises(ValueError, match="on_misfit='x'"):
        Lof("x")  # type: ignore[arg-type]
